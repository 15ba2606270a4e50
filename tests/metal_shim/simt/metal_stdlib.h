/* metal_stdlib.h: the part of Metal's standard library that kernels of this project use, for clang on this machine.
 *
 * generate.py puts it before each kernel file.  With SIMT_CHECK the address spaces are types (mixing them is an error, as on Metal) and the
 * file is compiled for its diagnostics only; without it they are nothing and the file runs (simt.h).  No system header is included: user
 * code must not find functions that Metal lacks.  half and bfloat round after every operation, as on the device (the compiler's options
 * see to that). */
#ifndef CALLA_METAL_SHIM_METAL_STDLIB_H
#define CALLA_METAL_SHIM_METAL_STDLIB_H

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef __INT8_TYPE__ int8_t;
typedef __UINT8_TYPE__ uint8_t;
typedef __INT16_TYPE__ int16_t;
typedef __UINT16_TYPE__ uint16_t;
typedef __INT32_TYPE__ int32_t;
typedef __UINT32_TYPE__ uint32_t;
typedef __INT64_TYPE__ int64_t;
typedef __UINT64_TYPE__ uint64_t;
typedef __SIZE_TYPE__ size_t;
typedef __PTRDIFF_TYPE__ ptrdiff_t;
typedef _Float16 half;
typedef __bf16 bfloat;

#include "simt.h"

/* ---- vectors ---- */

template <class T> struct simt_vector { /* a scalar */
    typedef T element;
    enum { values = 1 };
};
#define SIMT_VECTOR(T, N)                                                                                                                  \
    typedef T T##N __attribute__((ext_vector_type(N)));                                                                                    \
    template <> struct simt_vector<T##N> {                                                                                                 \
        typedef T element;                                                                                                                 \
        enum { values = N };                                                                                                               \
    };
#define SIMT_VECTORS(T) SIMT_VECTOR(T, 2) SIMT_VECTOR(T, 3) SIMT_VECTOR(T, 4)
SIMT_VECTORS(float)
SIMT_VECTORS(half)
SIMT_VECTORS(bfloat)
SIMT_VECTORS(char)
SIMT_VECTORS(uchar)
SIMT_VECTORS(short)
SIMT_VECTORS(ushort)
SIMT_VECTORS(int)
SIMT_VECTORS(uint)
SIMT_VECTORS(long)
SIMT_VECTORS(ulong)

template <class T, int N> struct simt_vector_of {
    typedef T type __attribute__((ext_vector_type(N)));
};

template <bool B, class T = void> struct simt_if {};
template <class T> struct simt_if<true, T> {
    typedef T type;
};
#define SIMT_IF_VECTOR(V) typename simt_if<(simt_vector<V>::values > 1), V>::type

/* What generate.py makes of `float4(…)`: Metal's constructors, which convert where a C cast of a vector would reinterpret. */
template <class V, class A> inline void simt_put(V &out, int &at, A a) {
    typedef typename simt_vector<V>::element T;
    if constexpr (simt_vector<A>::values == 1) {
        out[at++] = (T)a;
    } else {
        for (int i = 0; i < simt_vector<A>::values; i++) out[at++] = (T)a[i];
    }
}
template <class V, class... A> inline V simt_make(A... a) {
    V out;
    int at = 0;
    (simt_put(out, at, a), ...);
    return out;
}
template <class V, class A> inline V simt_make(A a) {
    typedef typename simt_vector<V>::element T;
    if constexpr (simt_vector<A>::values == 1) {
        return (V)(T)a;
    } else {
        static_assert((int)simt_vector<A>::values == (int)simt_vector<V>::values, "a vector of another length");
        return __builtin_convertvector(a, V);
    }
}
template <class V> inline V simt_make() { return (V)0; }

/* The compiler calls it for every result in bfloat; round to nearest even. */
extern "C" __attribute__((weak)) __bf16 __truncsfbf2(float f) {
    const uint32_t u = __builtin_bit_cast(uint32_t, f);
    const uint32_t r = (u & 0x7fffffffu) > 0x7f800000u ? (u >> 16) | 0x40u : (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    return __builtin_bit_cast(__bf16, (uint16_t)r);
}

/* ---- function constants ---- */

template <class T, int N> struct simt_constant {
    operator T() const {
        T v;
        __builtin_memcpy(&v, &simt_constants[N], sizeof v);
        return v;
    }
    static bool set() { return simt_constants_set[N]; }
};
template <class C> inline bool is_function_constant_defined(const C &c) { return c.set(); }

/* ---- what a kernel is told about its thread ---- */

template <class P> inline P simt_builtin(const uint32_t v[3]) {
    if constexpr (simt_vector<P>::values == 1) {
        return (P)v[0];
    } else {
        P out;
        for (int i = 0; i < simt_vector<P>::values; i++) out[i] = (typename simt_vector<P>::element)v[i];
        return out;
    }
}
template <class P> inline P simt_builtin(uint32_t v) { return (P)v; }
template <class P> inline P simt_grid_position() {
    uint32_t v[3];
    for (int i = 0; i < 3; i++) v[i] = simt_now.position[i] * simt_now.full_threads[i] + simt_self->position[i];
    return simt_builtin<P>(v);
}

template <class F, int I> struct simt_parameter;
template <class R, class A, class... Z, int I> struct simt_parameter<R(A, Z...), I> : simt_parameter<R(Z...), I - 1> {};
template <class R, class A, class... Z> struct simt_parameter<R(A, Z...), 0> {
    typedef A type;
};
template <class P> struct simt_argument { /* a value */
    typedef P pointee;
};
template <class T> struct simt_argument<T *> {
    typedef T pointee;
    static T *get(void *p) { return (T *)p; }
    enum { whole = 0 };
};
template <class T> struct simt_argument<T &> {
    typedef T pointee;
    static T &get(void *p) { return *(T *)p; }
    enum { whole = 1 };
};
template <class T> struct simt_size {
    enum { bytes = sizeof(T), align = alignof(T) };
};
template <> struct simt_size<void> {
    enum { bytes = 1, align = 1 };
};
template <> struct simt_size<const void> : simt_size<void> {};

#ifdef SIMT_CHECK
#define device __attribute__((address_space(1)))
#define constant const __attribute__((address_space(2)))
#define threadgroup __attribute__((address_space(3)))
#else
#define device
#define constant const
#define threadgroup
#endif
#define thread
#define kernel

namespace metal {

template <class T, int N> using vec = typename simt_vector_of<T, N>::type;

template <class T, class F> inline T as_type(F v) { return __builtin_bit_cast(T, v); }

/* ---- mathematics: float functions also take half and bfloat, computed in float and rounded once ---- */

#define SIMT_EACH1(name)                                                                                                                   \
    template <class V> inline SIMT_IF_VECTOR(V) name(V a) {                                                                                \
        V r;                                                                                                                               \
        for (int i = 0; i < simt_vector<V>::values; i++) r[i] = name((typename simt_vector<V>::element)a[i]);                              \
        return r;                                                                                                                          \
    }
#define SIMT_EACH2(name)                                                                                                                   \
    template <class V> inline SIMT_IF_VECTOR(V) name(V a, V b) {                                                                           \
        typedef typename simt_vector<V>::element T;                                                                                        \
        V r;                                                                                                                               \
        for (int i = 0; i < simt_vector<V>::values; i++) r[i] = name((T)a[i], (T)b[i]);                                                    \
        return r;                                                                                                                          \
    }
#define SIMT_EACH3(name)                                                                                                                   \
    template <class V> inline SIMT_IF_VECTOR(V) name(V a, V b, V c) {                                                                      \
        typedef typename simt_vector<V>::element T;                                                                                        \
        V r;                                                                                                                               \
        for (int i = 0; i < simt_vector<V>::values; i++) r[i] = name((T)a[i], (T)b[i], (T)c[i]);                                           \
        return r;                                                                                                                          \
    }
#define SIMT_FLOAT1(name, expression)                                                                                                      \
    inline float name(float a) { return expression; }                                                                                      \
    inline half name(half h) { return (half)name((float)h); }                                                                              \
    inline bfloat name(bfloat h) { return (bfloat)name((float)h); }                                                                        \
    SIMT_EACH1(name)
#define SIMT_FLOAT2(name, expression)                                                                                                      \
    inline float name(float a, float b) { return expression; }                                                                             \
    inline half name(half a, half b) { return (half)name((float)a, (float)b); }                                                            \
    inline bfloat name(bfloat a, bfloat b) { return (bfloat)name((float)a, (float)b); }                                                    \
    SIMT_EACH2(name)
#define SIMT_FLOAT3(name, expression)                                                                                                      \
    inline float name(float a, float b, float c) { return expression; }                                                                    \
    inline half name(half a, half b, half c) { return (half)name((float)a, (float)b, (float)c); }                                          \
    inline bfloat name(bfloat a, bfloat b, bfloat c) { return (bfloat)name((float)a, (float)b, (float)c); }                                \
    SIMT_EACH3(name)

SIMT_FLOAT1(exp, __builtin_expf(a))
SIMT_FLOAT1(exp2, __builtin_exp2f(a))
SIMT_FLOAT1(log, __builtin_logf(a))
SIMT_FLOAT1(log2, __builtin_log2f(a))
SIMT_FLOAT1(log10, __builtin_log10f(a))
SIMT_FLOAT1(sin, __builtin_sinf(a))
SIMT_FLOAT1(cos, __builtin_cosf(a))
SIMT_FLOAT1(tan, __builtin_tanf(a))
SIMT_FLOAT1(tanh, __builtin_tanhf(a))
SIMT_FLOAT1(sqrt, __builtin_sqrtf(a))
SIMT_FLOAT1(rsqrt, 1.0f / __builtin_sqrtf(a))
SIMT_FLOAT1(fabs, __builtin_fabsf(a))
SIMT_FLOAT1(floor, __builtin_floorf(a))
SIMT_FLOAT1(ceil, __builtin_ceilf(a))
SIMT_FLOAT1(trunc, __builtin_truncf(a))
SIMT_FLOAT1(round, __builtin_roundf(a))
SIMT_FLOAT1(rint, __builtin_rintf(a))
SIMT_FLOAT1(fract, a - __builtin_floorf(a))
SIMT_FLOAT1(saturate, __builtin_fminf(__builtin_fmaxf(a, 0.0f), 1.0f))
SIMT_FLOAT1(sign, a > 0 ? 1.0f : a < 0 ? -1.0f : a)
SIMT_FLOAT2(pow, __builtin_powf(a, b))
SIMT_FLOAT2(powr, __builtin_powf(a, b))
SIMT_FLOAT2(fmin, __builtin_fminf(a, b))
SIMT_FLOAT2(fmax, __builtin_fmaxf(a, b))
SIMT_FLOAT2(fmod, __builtin_fmodf(a, b))
SIMT_FLOAT2(atan2, __builtin_atan2f(a, b))
SIMT_FLOAT2(step, b < a ? 0.0f : 1.0f)
SIMT_FLOAT3(fma, __builtin_fmaf(a, b, c))
SIMT_FLOAT3(mix, a + (b - a) * c)

inline float ldexp(float a, int e) { return __builtin_ldexpf(a, e); }
inline float divide(float a, float b) { return a / b; }
inline bool isnan(float a) { return __builtin_isnan(a); }
inline bool isinf(float a) { return __builtin_isinf(a); }
inline bool isfinite(float a) { return __builtin_isfinite(a); }
inline float sincos(float a, float &c) {
    c = cos(a);
    return sin(a);
}
namespace precise {
using namespace metal;
}
namespace fast {
using namespace metal;
}

#define SIMT_MINMAX(T)                                                                                                                     \
    inline T min(T a, T b) { return b < a ? b : a; }                                                                                       \
    inline T max(T a, T b) { return a < b ? b : a; }                                                                                       \
    inline T clamp(T a, T low, T high) { return min(max(a, low), high); }                                                                  \
    inline T min3(T a, T b, T c) { return min(a, min(b, c)); }                                                                             \
    inline T max3(T a, T b, T c) { return max(a, max(b, c)); }
#define SIMT_INTEGER(T, U, bits)                                                                                                           \
    SIMT_MINMAX(T)                                                                                                                         \
    inline T popcount(T a) { return (T)__builtin_popcountg((U)a); }                                                                        \
    inline T clz(T a) { return (T)__builtin_clzg((U)a, bits); }                                                                            \
    inline T ctz(T a) { return (T)__builtin_ctzg((U)a, bits); }                                                                            \
    inline T rotate(T a, T n) { return (T)(((U)a << (n & (bits - 1))) | ((U)a >> ((bits - n) & (bits - 1)))); }
/* min and max of floats: the other one where one is NaN */
#define SIMT_MINMAX_FLOAT(T)                                                                                                               \
    inline T min(T a, T b) { return fmin(a, b); }                                                                                          \
    inline T max(T a, T b) { return fmax(a, b); }                                                                                          \
    inline T clamp(T a, T low, T high) { return fmin(fmax(a, low), high); }                                                                \
    inline T min3(T a, T b, T c) { return fmin(a, fmin(b, c)); }                                                                           \
    inline T max3(T a, T b, T c) { return fmax(a, fmax(b, c)); }                                                                           \
    inline T abs(T a) { return fabs(a); }
SIMT_MINMAX_FLOAT(float)
SIMT_MINMAX_FLOAT(half)
SIMT_MINMAX_FLOAT(bfloat)
SIMT_INTEGER(char, uchar, 8)
SIMT_INTEGER(uchar, uchar, 8)
SIMT_INTEGER(short, ushort, 16)
SIMT_INTEGER(ushort, ushort, 16)
SIMT_INTEGER(int, uint, 32)
SIMT_INTEGER(uint, uint, 32)
SIMT_INTEGER(long, ulong, 64)
SIMT_INTEGER(ulong, ulong, 64)
inline int abs(int a) { return a < 0 ? -a : a; }
inline short abs(short a) { return (short)(a < 0 ? -a : a); }
inline uint mulhi(uint a, uint b) { return (uint)(((ulong)a * b) >> 32); }
inline ulong mulhi(ulong a, ulong b) { return (ulong)(((unsigned __int128)a * b) >> 64); }
inline uint reverse_bits(uint a) { return __builtin_bitreverse32(a); }
inline uint extract_bits(uint a, uint first, uint n) { return n >= 32 ? a >> first : (a >> first) & ((1u << n) - 1); }
inline uint insert_bits(uint base, uint v, uint first, uint n) {
    const uint ones = (n >= 32 ? ~0u : (1u << n) - 1) << first;
    return (base & ~ones) | ((v << first) & ones);
}
SIMT_EACH2(min)
SIMT_EACH2(max)
SIMT_EACH3(clamp)
SIMT_EACH1(abs)
SIMT_EACH1(popcount)

template <class V> inline typename simt_vector<V>::element dot(V a, V b) {
    typename simt_vector<V>::element r = a[0] * b[0];
    for (int i = 1; i < simt_vector<V>::values; i++) r += a[i] * b[i];
    return r;
}
template <class V> inline typename simt_vector<V>::element length_squared(V a) { return dot(a, a); }
template <class V, class C> inline V select(V no, V yes, C c) {
    if constexpr (simt_vector<V>::values == 1) {
        return c ? yes : no;
    } else {
        V r;
        for (int i = 0; i < simt_vector<V>::values; i++) r[i] = c[i] ? yes[i] : no[i];
        return r;
    }
}
template <class C> inline bool any(C c) {
    bool r = false;
    for (int i = 0; i < simt_vector<C>::values; i++) r |= c[i] != 0;
    return r;
}
template <class C> inline bool all(C c) {
    bool r = true;
    for (int i = 0; i < simt_vector<C>::values; i++) r &= c[i] != 0;
    return r;
}
inline bool any(bool c) { return c; }
inline bool all(bool c) { return c; }

/* ---- barriers ---- */

enum class mem_flags : uint { mem_none = 0, mem_device = SIMT_FENCE_DEVICE, mem_threadgroup = SIMT_FENCE_THREADGROUP };
constexpr mem_flags operator|(mem_flags a, mem_flags b) { return (mem_flags)((uint)a | (uint)b); }
inline void threadgroup_barrier(mem_flags f) { simt_threadgroup_barrier((uint)f); }
inline void simdgroup_barrier(mem_flags f) { simt_simdgroup_barrier((uint)f); }

/* ---- operations of a simdgroup ---- */

#define SIMT_UNSEEN __attribute__((noinline, no_sanitize("coverage")))

template <class T> inline T &simt_value(simt_slot &s) { return *(T *)(void *)s.bytes; }

template <class T> inline simt_slot *simt_meet(const char *what, const T &v, simt_reduce reduce, uint32_t *mask) {
    static_assert(sizeof(T) <= SIMT_SLOT_BYTES, "too large a value for a simd operation");
    __builtin_memcpy(simt_slots[simt_self->simdgroup][simt_self->lane].bytes, &v, sizeof v);
    return simt_exchange(what, reduce, mask);
}

/* Reductions run once, in the last lane to arrive; sums as a tree over halves. */
template <class T, class F> SIMT_UNSEEN inline void simt_reduce_tree(simt_slot *slots, uint32_t mask) {
    T v[SIMT_WIDTH];
    int n = 0;
    for (uint32_t i = 0; i < SIMT_WIDTH; i++)
        if (mask >> i & 1) v[n++] = simt_value<T>(slots[i]);
    while (n > 1) {
        const int upper = n / 2, lower = n - upper;
        for (int i = 0; i < upper; i++) v[i] = F::of(v[i], v[i + lower]);
        n = lower;
    }
    simt_value<T>(slots[0]) = v[0];
}
template <class T, class F, bool Inclusive> SIMT_UNSEEN inline void simt_reduce_prefix(simt_slot *slots, uint32_t mask) {
    T sum = F::template first<T>();
    for (uint32_t i = 0; i < SIMT_WIDTH; i++) {
        if (!(mask >> i & 1)) continue;
        const T next = F::of(sum, simt_value<T>(slots[i]));
        simt_value<T>(slots[i]) = Inclusive ? next : sum;
        sum = next;
    }
}
#define SIMT_OPERATION(name, expression, start)                                                                                            \
    struct simt_##name {                                                                                                                   \
        template <class T> static T of(T a, T b) { return expression; }                                                                    \
        template <class T> static T first() { return (T)start; }                                                                           \
    };                                                                                                                                     \
    template <class T> inline T simd_##name(T v) {                                                                                         \
        uint32_t mask;                                                                                                                     \
        return simt_value<T>(simt_meet("simd_" #name, v, simt_reduce_tree<T, simt_##name>, &mask)[0]);                                     \
    }
SIMT_OPERATION(sum, a + b, 0)
SIMT_OPERATION(product, a *b, 1)
SIMT_OPERATION(min, min(a, b), 0)
SIMT_OPERATION(max, max(a, b), 0)
SIMT_OPERATION(and, a &b, 0)
SIMT_OPERATION(or, a | b, 0)
SIMT_OPERATION(xor, a ^ b, 0)
#define SIMT_PREFIX(name, operation, inclusive)                                                                                            \
    template <class T> inline T simd_prefix_##name(T v) {                                                                                  \
        uint32_t mask;                                                                                                                     \
        return simt_value<T>(                                                                                                              \
            simt_meet("simd_prefix_" #name, v, simt_reduce_prefix<T, simt_##operation, inclusive>, &mask)[simt_self->lane]);               \
    }
SIMT_PREFIX(inclusive_sum, sum, true)
SIMT_PREFIX(exclusive_sum, sum, false)
SIMT_PREFIX(inclusive_product, product, true)
SIMT_PREFIX(exclusive_product, product, false)

/* From a lane that does not take part: all bits set. */
template <class T> inline T simt_shuffle(const char *what, T v, uint32_t from) {
    uint32_t mask;
    simt_slot *slots = simt_meet(what, v, nullptr, &mask);
    if (from < SIMT_WIDTH) return simt_value<T>(slots[from]);
    simt_fault("%s from lane %u", what, from);
    return v;
}
template <class T> inline T simd_shuffle(T v, ushort lane) { return simt_shuffle("simd_shuffle", v, lane); }
template <class T> inline T simd_shuffle_xor(T v, ushort bits) { return simt_shuffle("simd_shuffle_xor", v, simt_self->lane ^ bits); }
template <class T> inline T simd_shuffle_down(T v, ushort by) {
    const uint32_t from = simt_self->lane + by;
    return simt_shuffle("simd_shuffle_down", v, from < SIMT_WIDTH ? from : simt_self->lane);
}
template <class T> inline T simd_shuffle_up(T v, ushort by) {
    return simt_shuffle("simd_shuffle_up", v, simt_self->lane >= by ? simt_self->lane - by : simt_self->lane);
}
template <class T> inline T simd_shuffle_rotate_down(T v, ushort by) {
    return simt_shuffle("simd_shuffle_rotate_down", v, (simt_self->lane + by) % 32u);
}
template <class T> inline T simd_shuffle_rotate_up(T v, ushort by) {
    return simt_shuffle("simd_shuffle_rotate_up", v, (simt_self->lane - by) % 32u);
}
template <class T> inline T simd_broadcast(T v, ushort lane) { return simt_shuffle("simd_broadcast", v, lane); }
template <class T> inline T simd_broadcast_first(T v) {
    uint32_t mask;
    simt_slot *slots = simt_meet("simd_broadcast_first", v, nullptr, &mask);
    return simt_value<T>(slots[__builtin_ctz(mask)]);
}
template <class T> inline T quad_shuffle(T v, ushort lane) { return simt_shuffle("quad_shuffle", v, (simt_self->lane & ~3u) + lane % 4u); }
template <class T> inline T quad_shuffle_xor(T v, ushort bits) {
    return simt_shuffle("quad_shuffle_xor", v, simt_self->lane ^ (bits & 3u));
}
template <class T> inline T quad_broadcast(T v, ushort lane) {
    return simt_shuffle("quad_broadcast", v, (simt_self->lane & ~3u) + lane % 4u);
}
template <class T> inline T quad_sum(T v) {
    v += quad_shuffle_xor(v, 1);
    return v + quad_shuffle_xor(v, 2);
}
template <class T> inline T quad_max(T v) {
    v = max(v, quad_shuffle_xor(v, 1));
    return max(v, quad_shuffle_xor(v, 2));
}

SIMT_UNSEEN inline void simt_reduce_ballot(simt_slot *slots, uint32_t mask) {
    ulong bits = 0;
    for (uint32_t i = 0; i < SIMT_WIDTH; i++)
        if (mask >> i & 1 && simt_value<bool>(slots[i])) bits |= 1ul << i;
    simt_value<ulong>(slots[0]) = bits;
}
struct simd_vote {
    typedef ulong vote_t;
    vote_t bits;
    explicit operator vote_t() const { return bits; }
    bool all() const { return bits == 0xfffffffful; }
    bool any() const { return bits != 0; }
};
inline ulong simt_ballot(const char *what, bool v, uint32_t &mask) {
    return simt_value<ulong>(simt_meet(what, v, simt_reduce_ballot, &mask)[0]);
}
inline simd_vote simd_ballot(bool v) {
    uint32_t mask;
    return simd_vote{simt_ballot("simd_ballot", v, mask)};
}
inline bool simd_any(bool v) {
    uint32_t mask;
    return simt_ballot("simd_any", v, mask) != 0;
}
inline bool simd_all(bool v) {
    uint32_t mask;
    const ulong bits = simt_ballot("simd_all", v, mask);
    return bits == mask;
}
inline bool simd_is_first() {
    uint32_t mask;
    simt_ballot("simd_is_first", true, mask);
    return simt_self->lane == (uint32_t)__builtin_ctz(mask);
}

/* ---- matrices of a simdgroup: 8 × 8, two values a lane, side by side in a row ---- */

template <class T, int Columns = 8, int Rows = 8> struct simdgroup_matrix {
    static_assert(Columns == 8 && Rows == 8, "simdgroup matrices are 8 x 8");
    vec<T, 2> values;
    simdgroup_matrix() {}
    explicit simdgroup_matrix(T diagonal) {
        for (int i = 0; i < 2; i++) values[i] = row() == column() + i ? diagonal : (T)0.0f;
    }
    vec<T, 2> &thread_elements() { return values; }
    static uint row() { return (simt_self->lane / 4 & 4) + simt_self->lane / 2 % 4; }
    static uint column() { return (simt_self->lane / 4 & 2) * 2 + simt_self->lane % 2 * 2; }
};
typedef simdgroup_matrix<float> simdgroup_float8x8;
typedef simdgroup_matrix<half> simdgroup_half8x8;
typedef simdgroup_matrix<bfloat> simdgroup_bfloat8x8;

template <class T, int C, int R> inline simdgroup_matrix<T, C, R> make_filled_simdgroup_matrix(T v) {
    simdgroup_matrix<T, C, R> m;
    m.values = (vec<T, 2>)v;
    return m;
}

#define SIMT_MATRIX_MEMORY(space)                                                                                                          \
    template <class T>                                                                                                                     \
    inline void simdgroup_load(simdgroup_matrix<T> &m, space const T *p, ulong row_values = 8, ulong2 origin = 0,                          \
                               bool transposed = false) {                                                                                  \
        for (uint i = 0; i < 2; i++) {                                                                                                     \
            const ulong row = transposed ? m.column() + i : m.row(), column = transposed ? m.row() : m.column() + i;                       \
            m.values[i] = p[(origin.y + row) * row_values + origin.x + column];                                                            \
        }                                                                                                                                  \
    }                                                                                                                                      \
    template <class T>                                                                                                                     \
    inline void simdgroup_store(simdgroup_matrix<T> m, space T *p, ulong row_values = 8, ulong2 origin = 0, bool transposed = false) {     \
        for (uint i = 0; i < 2; i++) {                                                                                                     \
            const ulong row = transposed ? m.column() + i : m.row(), column = transposed ? m.row() : m.column() + i;                       \
            p[(origin.y + row) * row_values + origin.x + column] = m.values[i];                                                            \
        }                                                                                                                                  \
    }
SIMT_MATRIX_MEMORY(device)
#ifdef SIMT_CHECK
SIMT_MATRIX_MEMORY(threadgroup)
#endif

struct simt_rows {
    vec<float, 8> row[8];
};
struct simt_matrix_values {
    float a[2], b[2], c[2];
};
SIMT_UNSEEN inline void simt_reduce_matrix(simt_slot *slots, uint32_t mask) {
    if (mask != 0xffffffffu) {
        simt_fault("simdgroup_multiply_accumulate needs all 32 lanes");
        return;
    }
    float a[8][8];
    simt_rows b, d;
    for (uint32_t i = 0; i < SIMT_WIDTH; i++) {
        const simt_matrix_values &v = simt_value<simt_matrix_values>(slots[i]);
        const uint32_t row = (i / 4 & 4) + i / 2 % 4, column = (i / 4 & 2) * 2 + i % 2 * 2;
        for (uint32_t k = 0; k < 2; k++) {
            a[row][column + k] = v.a[k];
            b.row[row][column + k] = v.b[k];
            d.row[row][column + k] = v.c[k];
        }
    }
    for (int row = 0; row < 8; row++)
        for (int k = 0; k < 8; k++) d.row[row] += a[row][k] * b.row[k];
    for (uint32_t i = 0; i < SIMT_WIDTH; i++) {
        const uint32_t row = (i / 4 & 4) + i / 2 % 4, column = (i / 4 & 2) * 2 + i % 2 * 2;
        float *out = &simt_value<float>(slots[i]);
        out[0] = d.row[row][column];
        out[1] = d.row[row][column + 1];
    }
    simt_matrix_products++;
}
template <class D, class A, class B, class C>
inline void simdgroup_multiply_accumulate(simdgroup_matrix<D> &d, simdgroup_matrix<A> a, simdgroup_matrix<B> b, simdgroup_matrix<C> c) {
    simt_matrix_values v;
    for (int i = 0; i < 2; i++) {
        v.a[i] = (float)a.values[i];
        v.b[i] = (float)b.values[i];
        v.c[i] = (float)c.values[i];
    }
    uint32_t mask;
    const float *out = &simt_value<float>(simt_meet("simdgroup_multiply_accumulate", v, simt_reduce_matrix, &mask)[simt_self->lane]);
    for (int i = 0; i < 2; i++) d.values[i] = (D)out[i];
}
template <class D, class A, class B> inline void simdgroup_multiply(simdgroup_matrix<D> &d, simdgroup_matrix<A> a, simdgroup_matrix<B> b) {
    simdgroup_multiply_accumulate(d, a, b, simdgroup_matrix<D>((D)0.0f));
}

/* ---- atomics: relaxed, the only order that Metal has.  All are read-modify-write operations, which trace.c hears of from simt_atomic ---- */

enum memory_order { memory_order_relaxed };
template <class T> struct atomic {
    T value;
};
typedef atomic<int> atomic_int;
typedef atomic<uint> atomic_uint;
typedef atomic<float> atomic_float;
typedef atomic<bool> atomic_bool;

#ifdef SIMT_CHECK
#define SIMT_ATOMIC(space, name, expression)                                                                                               \
    template <class T> inline T atomic_##name##_explicit(volatile space atomic<T> *p, T v, memory_order) {                                 \
        const T before = p->value;                                                                                                         \
        p->value = expression;                                                                                                             \
        return before;                                                                                                                     \
    }
#define SIMT_ATOMIC_REST(space)                                                                                                            \
    template <class T> inline T atomic_load_explicit(volatile const space atomic<T> *p, memory_order) { return p->value; }                 \
    template <class T> inline void atomic_store_explicit(volatile space atomic<T> *p, T v, memory_order) { p->value = v; }                 \
    template <class T>                                                                                                                     \
    inline bool atomic_compare_exchange_weak_explicit(volatile space atomic<T> *p, T *expected, T v, memory_order, memory_order) {         \
        if (p->value != *expected) return false;                                                                                           \
        p->value = v;                                                                                                                      \
        return true;                                                                                                                       \
    }
#else
/* One lane runs at a time, so plain accesses do; out of line, they are not reported as ordinary ones. */
template <class T> SIMT_UNSEEN inline T simt_atomic_load(volatile const T *p) { return *p; }
template <class T> SIMT_UNSEEN inline void simt_atomic_store(volatile T *p, T v) { *p = v; }
#define SIMT_ATOMIC(space, name, expression)                                                                                               \
    template <class T, class U> inline T atomic_##name##_explicit(volatile atomic<T> *p, U given, memory_order) {                          \
        const T v = (T)given;                                                                                                              \
        if (simt_atomic) simt_atomic((const void *)&p->value, sizeof(T));                                                                  \
        const T before = simt_atomic_load(&p->value);                                                                                      \
        simt_atomic_store(&p->value, (T)(expression));                                                                                     \
        (void)v;                                                                                                                           \
        return before;                                                                                                                     \
    }
#define SIMT_ATOMIC_REST(space)                                                                                                            \
    template <class T> inline T atomic_load_explicit(volatile const atomic<T> *p, memory_order) {                                          \
        if (simt_atomic) simt_atomic((const void *)&p->value, sizeof(T));                                                                  \
        return simt_atomic_load(&p->value);                                                                                                \
    }                                                                                                                                      \
    template <class T, class U> inline void atomic_store_explicit(volatile atomic<T> *p, U v, memory_order) {                              \
        if (simt_atomic) simt_atomic((const void *)&p->value, sizeof(T));                                                                  \
        simt_atomic_store(&p->value, (T)v);                                                                                                \
    }                                                                                                                                      \
    template <class T, class U>                                                                                                            \
    inline bool atomic_compare_exchange_weak_explicit(volatile atomic<T> *p, T *expected, U v, memory_order, memory_order) {               \
        if (simt_atomic) simt_atomic((const void *)&p->value, sizeof(T));                                                                  \
        const T before = simt_atomic_load(&p->value);                                                                                      \
        if (before != *expected) {                                                                                                         \
            *expected = before;                                                                                                            \
            return false;                                                                                                                  \
        }                                                                                                                                  \
        simt_atomic_store(&p->value, (T)v);                                                                                                \
        return true;                                                                                                                       \
    }
#endif
#define SIMT_ATOMICS(space)                                                                                                                \
    SIMT_ATOMIC(space, exchange, v)                                                                                                        \
    SIMT_ATOMIC(space, fetch_add, before + v)                                                                                              \
    SIMT_ATOMIC(space, fetch_sub, before - v)                                                                                              \
    SIMT_ATOMIC(space, fetch_min, min(before, v))                                                                                          \
    SIMT_ATOMIC(space, fetch_max, max(before, v))                                                                                          \
    SIMT_ATOMIC(space, fetch_and, before &v)                                                                                               \
    SIMT_ATOMIC(space, fetch_or, before | v)                                                                                               \
    SIMT_ATOMIC(space, fetch_xor, before ^ v)                                                                                              \
    SIMT_ATOMIC_REST(space)
SIMT_ATOMICS(device)
#ifdef SIMT_CHECK
SIMT_ATOMICS(threadgroup)
#endif

} // namespace metal

#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")
#define FLT_MAX 0x1.fffffep127f
#define FLT_MIN 0x1p-126f
#define FLT_EPSILON 0x1p-23f
#define HALF_MAX 65504.0f
#define INT_MAX 2147483647
#define UINT_MAX 4294967295u
#define M_PI_F 3.14159265358979323846f
#define M_LOG2E_F 1.44269504088896340736f
#define M_LN2_F 0.69314718055994530942f

#endif
