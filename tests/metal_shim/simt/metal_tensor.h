/* metal_tensor.h: the part of Metal 4's tensors and tensor operations that kernels of this project use, as Apple's headers (metal_tensor,
 * MetalPerformancePrimitives) are known to declare it.  Of language version 4, which metalc.py compiles with --metal4.
 *
 * A cooperative tensor is spread over the threads of its simdgroups.  Nobody may rely on how, so here it is as no device would have it: one
 * element to each thread in turn.  A product is computed by each thread for its own elements, from memory that is read as any other. */
#ifndef CALLA_METAL_SHIM_METAL_TENSOR_H
#define CALLA_METAL_SHIM_METAL_TENSOR_H

namespace metal {

template <class I, int N> struct dextents {
    static_assert(N == 2, "of matrices alone");
    I inner, outer;
    dextents(I a, I b) : inner(a), outer(b) {}
};

struct tensor_inline {};

template <size_t N> struct execution_simdgroups {
    enum { threads = N * SIMT_WIDTH };
};

/* Rows of `inner` values, one after the other. */
template <class T, class E, class KIND> struct tensor {
    typedef T element;
    T *data;
    E extents;
    tensor(T *p, E e) : data(p), extents(e) {}
};

/* All lanes of a simdgroup are at the same operation. */
inline void simt_meet(const char *what) {
    uint32_t mask;
    simt_exchange(what, nullptr, &mask);
}

SIMT_UNSEEN inline void simt_count_products(uint64_t n) { simt_matrix_products += n; }

template <class T> struct simt_is_const {
    enum { value = false };
};
template <class T> struct simt_is_const<const T> {
    enum { value = true };
};

struct simt_place { /* column and row */
    int at[2];
    int operator[](int i) const { return at[i]; }
};

template <class T, int ROWS, int COLUMNS, int THREADS> struct simt_cooperative_tensor {
    static_assert(ROWS * COLUMNS % THREADS == 0, "as many elements for each thread");
    enum { CAPACITY = ROWS * COLUMNS / THREADS };
    T values[CAPACITY];

    simt_cooperative_tensor() {
        for (int i = 0; i < CAPACITY; i++) values[i] = (T)NAN; /* as the device: anything */
    }
    static int place(uint16_t i) { return i * THREADS + (int)simt_self->index; }
    uint16_t get_capacity() const { return CAPACITY; }
    T &operator[](uint16_t i) { return values[i]; }
    simt_place get_multidimensional_index(uint16_t i) const { return {{place(i) % COLUMNS, place(i) / COLUMNS}}; }
    template <class TENSOR> void store(TENSOR &to) const {
        simt_meet("cooperative_tensor::store");
        if (to.extents.inner != COLUMNS || to.extents.outer != ROWS) simt_fault("a tensor is stored to one of other extents");
        for (uint16_t i = 0; i < CAPACITY; i++) to.data[place(i)] = values[i];
    }
};

} // namespace metal

namespace mpp {
namespace tensor_ops {

struct matmul2d_descriptor {
    enum class mode { multiply, multiply_accumulate };
    int m, n, k;
    bool transpose_left, transpose_right, relaxed_precision;
    mode matmul_mode;
    constexpr matmul2d_descriptor(int m_, int n_, int k_, bool left = false, bool right = false, bool relaxed = false,
                                  mode how = mode::multiply)
        : m(m_), n(n_), k(k_), transpose_left(left), transpose_right(right), relaxed_precision(relaxed), matmul_mode(how) {}
};

template <matmul2d_descriptor D, class SCOPE> struct matmul2d {
    static_assert(!D.transpose_left, "not used");

    template <class LEFT, class RIGHT, class T>
    metal::simt_cooperative_tensor<T, D.m, D.n, SCOPE::threads> get_destination_cooperative_tensor() const {
        static_assert(!metal::simt_is_const<typename LEFT::element>::value && !metal::simt_is_const<typename RIGHT::element>::value,
                      "elements of operands may not be const");
        return {};
    }
    template <class LEFT, class RIGHT, class T>
    void run(LEFT &left, RIGHT &right, metal::simt_cooperative_tensor<T, D.m, D.n, SCOPE::threads> &to) const {
        metal::simt_meet("matmul2d::run");
        if (simt_now.n_threads != SCOPE::threads)
            simt_fault("a tensor operation of %d threads in a threadgroup of %u", (int)SCOPE::threads, simt_now.n_threads);
        const int inner = D.transpose_right ? D.k : D.n, outer = D.transpose_right ? D.n : D.k;
        if (left.extents.inner != D.k || left.extents.outer != D.m || right.extents.inner != inner || right.extents.outer != outer)
            simt_fault("a tensor operation whose operands have other extents");
        if (simt_self->index == 0) metal::simt_count_products((uint64_t)D.m * D.n * D.k / 512);
        for (uint16_t i = 0; i < to.get_capacity(); i++) {
            const int row = to.place(i) / D.n, column = to.place(i) % D.n;
            T sum = D.matmul_mode == matmul2d_descriptor::mode::multiply ? (T)0 : to[i];
            for (int k = 0; k < D.k; k++)
                sum += (T)left.data[row * D.k + k] * (T)right.data[D.transpose_right ? column * D.k + k : k * D.n + column];
            to[i] = sum;
        }
    }
};

} // namespace tensor_ops
} // namespace mpp

#endif
