// Made for the headers that it is compiled with (CMakeLists.txt).
int main() { return 0; }
