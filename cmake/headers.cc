// Nothing: made for the headers that are precompiled with it (compiler.cmake).
