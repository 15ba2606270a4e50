/* fault.cu: a kernel that breaks the device for the process: after it every call of CUDA fails. */
static __global__ void write_nowhere(int *p) { *p = 1; }

extern "C" void cuda_fault(void) {
    write_nowhere<<<1, 1>>>(nullptr);
    cudaDeviceSynchronize();
}
