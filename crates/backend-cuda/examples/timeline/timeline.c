// A timeline of a program on a GPU, without changing the program: CUDA loads this library when CUDA_INJECTION64_PATH names
// it. The file that FORERUN_TIMELINE names (default: timeline.txt) gets a line for each kernel, copy and call of the driver,
// with start and end in nanoseconds of one clock:
//
//   K start end blocks threads shared registers node name     dynamic shared memory; graph node, 0 outside a graph
//   C start end bytes
//   A start end name
//
// Build: see run.sh beside this file. CUPTI comes with the CUDA toolkit and as a package of PyPI.

#include <cupti.h>
#include <stdio.h>
#include <stdlib.h>

#define BUFFER ((size_t)8 << 20)

typedef unsigned long long u64;

static FILE *lines;

static void request(uint8_t **buffer, size_t *size, size_t *most) {
  *buffer = aligned_alloc(8, BUFFER);
  *size = *buffer ? BUFFER : 0;
  *most = 0;
}

static void put(const CUpti_Activity *record) {
  if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
    const CUpti_ActivityKernel10 *k = (const CUpti_ActivityKernel10 *)record;
    fprintf(lines, "K %llu %llu %d %d %d %d %llu %s\n", (u64)k->start, (u64)k->end, k->gridX * k->gridY * k->gridZ,
            k->blockX, k->dynamicSharedMemory, k->registersPerThread, (u64)k->graphNodeId, k->name);
  } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
    const CUpti_ActivityMemcpy6 *c = (const CUpti_ActivityMemcpy6 *)record;
    fprintf(lines, "C %llu %llu %llu\n", (u64)c->start, (u64)c->end, (u64)c->bytes);
  } else if (record->kind == CUPTI_ACTIVITY_KIND_DRIVER) {
    const CUpti_ActivityAPI *a = (const CUpti_ActivityAPI *)record;
    const char *name = "?";
    cuptiGetCallbackName(CUPTI_CB_DOMAIN_DRIVER_API, a->cbid, &name);
    fprintf(lines, "A %llu %llu %s\n", (u64)a->start, (u64)a->end, name);
  }
}

static void completed(CUcontext context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid) {
  (void)context, (void)stream, (void)size;
  CUpti_Activity *record = NULL;
  while (cuptiActivityGetNextRecord(buffer, valid, &record) == CUPTI_SUCCESS) put(record);
  free(buffer);
}

static void finish(void) {
  cuptiActivityFlushAll(1);
  fclose(lines);
}

int InitializeInjection(void) {
  const char *name = getenv("FORERUN_TIMELINE");
  lines = fopen(name ? name : "timeline.txt", "w");
  if (!lines) return 0;
  if (cuptiActivityRegisterCallbacks(request, completed) != CUPTI_SUCCESS) return 0;
  const CUpti_ActivityKind kinds[] = {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY,
                                      CUPTI_ACTIVITY_KIND_DRIVER};
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
    if (cuptiActivityEnable(kinds[i]) != CUPTI_SUCCESS) return 0;
  atexit(finish);
  return 1;
}
