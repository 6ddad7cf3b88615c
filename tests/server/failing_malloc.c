/* Preloaded by network_test.py. While the file $FAIL_WHILE exists, calls of malloc from the shared library whose path
   contains $FAIL_IN return NULL. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern void* __libc_malloc(size_t size);

static __thread int asking; /* dladdr and getenv may allocate */

static int Fails(void* caller) {
  Dl_info library;
  const char* where = getenv("FAIL_IN");
  const char* file = getenv("FAIL_WHILE");
  if (where == NULL || file == NULL || access(file, F_OK) != 0) return 0;
  return dladdr(caller, &library) != 0 && library.dli_fname != NULL && strstr(library.dli_fname, where) != NULL;
}

void* malloc(size_t size) {
  int fails;
  if (asking) return __libc_malloc(size);
  asking = 1;
  fails = Fails(__builtin_return_address(0));
  asking = 0;
  return fails ? NULL : __libc_malloc(size);
}
