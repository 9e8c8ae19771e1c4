// Runs a step that was written down as a table of instructions. Compiled once for a machine, without headers of torch.
//
// An instruction is a group of element-wise lanes, or one of the few others below. A group goes through its numbers
// block by block, so that what its lanes hand to each other stays in the cache. Python (plan.py) writes the tables, and
// asks for the kernels of lanes by name. Results do not depend on the number of threads.

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <unordered_map>
#ifdef _OPENMP
#include <omp.h>
#endif
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define EACH _Pragma("GCC ivdep") for (int64_t k = 0; k < n; k++)

// ---------------------------------------------------------------------------------------------------------- tables

struct Operand {
    int64_t base;  // address, or offset into the scratch memory of the thread
    int32_t step;  // bytes from a number to the next: 0 for a scalar, and in scratch memory
    int32_t in_scratch;
};
typedef void (*Kernel)(char* o, const char* a, const char* b, const char* c, int64_t n, int64_t at, const int64_t* more);
struct Lane {
    Kernel kernel;
    Operand o, a, b, c;
    int64_t* more;  // what else the kernel needs: strides
};
struct Sum {  // of partial sums, one a block, to a number of a type: 0 float, 1 double, 2 int64
    double* partial;
    void* out;
    int64_t type;
};
struct Group {
    int64_t numbers, block, num_lanes, num_sums;
    Lane* lanes;
    Sum* sums;
};
struct Instruction {
    int32_t what, threads;
    int64_t x[22];
};
struct Program {
    const Instruction* once;   // what does not change between steps, computed at each call
    const Instruction* steps;  // a step
    int64_t num_once, num_steps;
    char* scratch;
    int64_t scratch_size;  // of a thread
    void *sgemm, *dgemm;
    int64_t step, next;  // where a run goes on: the step, -1 for `once`, and the instruction
};
enum { GROUP, PRODUCT, REDUCE, TAKE_ROWS, PUT_ROWS, GATHER, SCATTER_ADD, CALL };

// ------------------------------------------------------------------------------------------------- functions

template <class To, class From>
static inline To bits(From x) {
    To to;
    static_assert(sizeof to == sizeof x, "sizes");
    memcpy(&to, &x, sizeof to);
    return to;
}
static const float INF = std::numeric_limits<float>::infinity(), NOT = std::numeric_limits<float>::quiet_NaN();

static inline float exp_(float x) {  // Cephes
    float c = x > 89.f ? 89.f : x;
    c = c < -104.f ? -104.f : c;
    float shifted = c * 1.44269504088896341f + 12582912.f, k = shifted - 12582912.f;
    int32_t n = bits<int32_t>(shifted) - 0x4B400000;
    float r = c - k * 0.693359375f;
    r = r + k * 2.12194440e-4f;
    float p = 1.9875691500E-4f;
    p = p * r + 1.3981999507E-3f;
    p = p * r + 8.3334519073E-3f;
    p = p * r + 4.1665795894E-2f;
    p = p * r + 1.6666665459E-1f;
    p = p * r + 5.0000001201E-1f;
    p = p * (r * r) + r + 1.f;
    int32_t half = n >> 1, rest = n - half;
    return p * bits<float>((half + 127) << 23) * bits<float>((rest + 127) << 23);
}
static inline float log_positive(float x) {  // Cephes, of a normal positive number
    int32_t i = bits<int32_t>(x), e = (i - 0x3f3504f3) >> 23;
    float f = bits<float>(i - (e << 23)) - 1.f, z = f * f, n = (float)e;
    float y = 7.0376836292E-2f;
    y = y * f - 1.1514610310E-1f;
    y = y * f + 1.1676998740E-1f;
    y = y * f - 1.2420140846E-1f;
    y = y * f + 1.4249322787E-1f;
    y = y * f - 1.6668057665E-1f;
    y = y * f + 2.0000714765E-1f;
    y = y * f - 2.4999993993E-1f;
    y = y * f + 3.3333331174E-1f;
    y = y * f * z - n * 2.12194440e-4f - 0.5f * z;
    return f + y + n * 0.693359375f;
}
static inline float log_(float x) {
    bool tiny = x < 1.17549435e-38f;
    float r = log_positive(tiny ? x * 8388608.f : x) - (tiny ? 15.942385152878742f : 0.f);
    r = x == INF ? INF : r;
    r = x > 0.f ? r : NOT;
    return x == 0.f ? -INF : r;
}
static inline double exp_(double x) {  // Cephes
    double c = x > 710. ? 710. : x;
    c = c < -750. ? -750. : c;
    double shifted = c * 1.4426950408889634074 + 6755399441055744., k = shifted - 6755399441055744.;
    int64_t n = bits<int64_t>(shifted) - 0x4338000000000000;
    double r = c - k * 6.93145751953125E-1;
    r = r - k * 1.42860682030941723212E-6;
    double z = r * r, p = ((1.26177193074810590878E-4 * z + 3.02994407707441961300E-2) * z + 9.99999999999999999910E-1) * r;
    double q = ((3.00198505138664455042E-6 * z + 2.52448340349684104192E-3) * z + 2.27265548208155028766E-1) * z + 2.;
    p = 1. + 2. * (p / (q - p));
    int64_t half = n >> 1, rest = n - half;
    return p * bits<double>((half + 1023) << 52) * bits<double>((rest + 1023) << 52);
}
static inline double log_positive(double x) {  // Cephes, of a normal positive number
    int64_t i = bits<int64_t>(x), e = (i - 0x3fe6a09e667f3bcd) >> 52;
    double f = bits<double>(i - (e << 52)) - 1., z = f * f, n = (double)e;
    double p = 1.01875663804580931796E-4, q = f + 1.12873587189167450590E1;
    p = p * f + 4.97494994976747001425E-1, q = q * f + 4.52279145837532221105E1;
    p = p * f + 4.70579119878881725854E0, q = q * f + 8.29875266912776603211E1;
    p = p * f + 1.44989225341610930846E1, q = q * f + 7.11544750618563894466E1;
    p = p * f + 1.79368678507819816313E1, q = q * f + 2.31251620126765340583E1;
    p = p * f + 7.70838733755885391666E0;
    return f + (f * (z * p / q) - n * 2.121944400546905827679e-4 - 0.5 * z) + n * 0.693359375;
}
static inline double log_(double x) {
    bool tiny = x < 2.2250738585072014e-308;
    double r = log_positive(tiny ? x * 4503599627370496. : x) - (tiny ? 36.04365338911715 : 0.);
    r = x == INF ? INF : r;
    r = x > 0. ? r : NOT;
    return x == 0. ? -INF : r;
}
template <class T> static inline T log1p_(T x) {  // Kahan
    T u = 1 + x, d = u - 1;
    T r = log_(u) * (x / d);
    r = d == 0 ? x : r;
    return x == INF ? INF : r;
}
template <class T> static inline T expm1_(T x) {
    T u = exp_(x), d = u - 1, near = d * x / log_(u);
    T r = std::fabs(x) > 1 ? d : near;
    return u == 1 ? x : r;
}
template <class T> static inline T softplus_(T x) {  // log(1 + e^x), and x itself above 20 as in torch
    T e = exp_(-std::fabs(x)), u = 1 + e, d = u - 1;
    T l = d == 0 ? e : log_positive(u) * (e / d);
    T r = (x > 0 ? x : 0) + l;
    r = x > 20 ? x : r;
    return x != x ? x : r;
}
template <class T> static inline T sigmoid_(T x) { return 1 / (1 + exp_(-x)); }
static inline float tanh_(float x) {
    float a = std::fabs(x), z = x * x;
    float p = -5.70498872745E-3f;
    p = p * z + 2.06390887954E-2f;
    p = p * z - 5.37397155531E-2f;
    p = p * z + 1.33314422036E-1f;
    p = p * z - 3.33332819422E-1f;
    float near = p * z * x + x, far = std::copysign(1.f - 2.f / (exp_(2.f * a) + 1.f), x);
    return a < 0.625f ? near : far;
}
static inline float erf_(float x) {  // N. Juffa
    float t = std::fabs(x), s = x * x;
    float r = -1.72853470e-5f * t + 3.83197126e-4f, u = -3.88396438e-3f * t + 2.42546219e-2f;
    r = r * s + u;
    r = r * t - 1.06777877e-1f;
    r = r * t - 6.34846687e-1f;
    r = r * t - 1.28717512e-1f;
    r = r * t - t;
    float far = std::copysign(1.f - exp_(r), x);
    far = t > 4.f ? std::copysign(1.f, x) : far;
    float q = -5.96761703e-4f;
    q = q * s + 4.99119423e-3f;
    q = q * s - 2.67681349e-2f;
    q = q * s + 1.12819925e-1f;
    q = q * s - 3.76125336e-1f;
    q = q * s + 1.28379166e-1f;
    float near = q * x + x;
    return t < 0.927734375f ? near : x != x ? x : far;
}
static inline double tanh_(double x) {  // Cephes
    double a = std::fabs(x), z = x * x;
    double p = (-9.64399179425052238628E-1 * z - 9.92877231001918586564E1) * z - 1.61468768441708447952E3;
    double q = ((z + 1.12811678491632931402E2) * z + 2.23548839060100448583E3) * z + 4.84406305325125486048E3;
    double near = p / q * z * x + x, far = std::copysign(1. - 2. / (exp_(2. * a) + 1.), x);
    return a < 0.625 ? near : far;
}
static inline double erf_(double x) { return std::erf(x); }

// --------------------------------------------------------------------------------------------------- kernels of lanes

template <class T, class R, class F>
static void unary(char* o_, const char* a_, const char*, const char*, int64_t n, int64_t, const int64_t*) {
    R* o = (R*)o_;
    const T* a = (const T*)a_;
    EACH o[k] = (R)F::f(a[k]);
}
template <class T, class R, class F, bool sa, bool sb>
static void binary(char* o_, const char* a_, const char* b_, const char*, int64_t n, int64_t, const int64_t*) {
    R* o = (R*)o_;
    const T *a = (const T*)a_, *b = (const T*)b_;
    const T a0 = a[0], b0 = b[0];
    EACH o[k] = (R)F::f(sa ? a0 : a[k], sb ? b0 : b[k]);
}
template <class T, class F, bool sa, bool sb, bool sc>
static void ternary(char* o_, const char* a_, const char* b_, const char* c_, int64_t n, int64_t, const int64_t*) {
    T* o = (T*)o_;
    const T *a = (const T*)a_, *b = (const T*)b_, *c = (const T*)c_;
    const T a0 = a[0], b0 = b[0], c0 = c[0];
    EACH o[k] = F::f(sa ? a0 : a[k], sb ? b0 : b[k], sc ? c0 : c[k]);
}
template <class T, bool sb, bool sc>
static void where(char* o_, const char* a_, const char* b_, const char* c_, int64_t n, int64_t, const int64_t*) {
    T* o = (T*)o_;
    const uint8_t* a = (const uint8_t*)a_;
    const T *b = (const T*)b_, *c = (const T*)c_;
    const T b0 = b[0], c0 = c[0];
    EACH o[k] = a[k] ? (sb ? b0 : b[k]) : (sc ? c0 : c[k]);
}
template <class T, class R>
static void convert(char* o_, const char* a_, const char*, const char*, int64_t n, int64_t, const int64_t*) {
    R* o = (R*)o_;
    const T* a = (const T*)a_;
    EACH o[k] = (R)a[k];
}
template <class T>
static void to_bool(char* o_, const char* a_, const char*, const char*, int64_t n, int64_t, const int64_t*) {
    uint8_t* o = (uint8_t*)o_;
    const T* a = (const T*)a_;
    EACH o[k] = a[k] != 0;
}
template <class T>
static void fill(char* o_, const char* a_, const char*, const char*, int64_t n, int64_t, const int64_t*) {
    T* o = (T*)o_;
    const T a = *(const T*)a_;
    EACH o[k] = a;
}

// Numbers that do not lie side by side. `more`: number of dimensions, sizes, and strides in numbers.
template <class T, bool is_store>
static void strided(char* o_, const char* a_, const char*, const char*, int64_t n, int64_t at, const int64_t* more) {
    const int64_t dims = more[0], *size = more + 1, *stride = more + 1 + dims, inner = size[dims - 1], s = stride[dims - 1];
    int64_t index[8], place = 0, left = at;
    for (int64_t d = dims - 1; d >= 0; d--) {
        index[d] = left % size[d];
        left /= size[d];
        place += index[d] * stride[d];
    }
    for (int64_t done = 0; done < n;) {
        int64_t m = inner - index[dims - 1];
        m = m < n - done ? m : n - done;
        if (is_store) {
            T* o = (T*)o_ + place;
            const T* a = (const T*)a_ + done;
            if (s == 1) memcpy(o, a, m * sizeof(T));
            else for (int64_t k = 0; k < m; k++) o[k * s] = a[k];
        } else {
            T* o = (T*)o_ + done;
            const T* a = (const T*)a_ + place;
            if (s == 1) for (int64_t k = 0; k < m; k++) o[k] = a[k];
            else if (s == 0) { const T v = *a; for (int64_t k = 0; k < m; k++) o[k] = v; }
            else for (int64_t k = 0; k < m; k++) o[k] = a[k * s];
        }
        done += m;
        place -= index[dims - 1] * s;
        index[dims - 1] = 0;
        for (int64_t d = dims - 2; d >= 0; d--) {
            place += stride[d];
            if (++index[d] < size[d]) break;
            place -= size[d] * stride[d];
            index[d] = 0;
        }
    }
}

// The sum of a block; the number of additions in a row is small, as in torch's sums in cascades.
template <class T, class A>
static A sum_of(const T* a, int64_t n, int64_t stride = 1) {
    const int L = 32;
    A total = 0;
    for (int64_t start = 0; start < n; start += 4096) {
        int64_t m = n - start < 4096 ? n - start : 4096, k = 0;
        const T* p = a + start * stride;
        A part[L] = {0};
        if (stride == 1) {
            for (; k + L <= m; k += L)
                for (int l = 0; l < L; l++) part[l] += p[k + l];
        }
        A rest = 0;
        for (; k < m; k++) rest += p[k * stride];
        for (int w = L / 2; w; w /= 2)
            for (int l = 0; l < w; l++) part[l] += part[l + w];
        total += part[0] + rest;
    }
    return total;
}
template <class T, class A>
static void sum_block(char* o, const char* a, const char*, const char*, int64_t n, int64_t at, const int64_t* more) {
    ((double*)o)[at / more[0]] = (double)sum_of<T, A>((const T*)a, n);
}

#define F1(name, expression) struct name { template <class T> static inline T f(T a) { return expression; } };
#define F2(name, expression) struct name { template <class T> static inline T f(T a, T b) { return expression; } };
#define C2(name, expression) struct name { template <class T> static inline bool f(T a, T b) { return expression; } };
#define F3(name, expression) struct name { template <class T> static inline T f(T a, T b, T c) { return expression; } };
F1(Neg, -a) F1(Abs, a < 0 ? -a : a == 0 ? (T)0 : a) F1(Sign, (T)(a > 0) - (T)(a < 0)) F1(Square, a * a) F1(Cube, a * a * a) F1(Relu, a > 0 ? a : a != a ? a : (T)0)
F1(Exp, exp_(a)) F1(Log, log_(a)) F1(Log1p, log1p_(a)) F1(Expm1, expm1_(a)) F1(Tanh, tanh_(a)) F1(Erf, erf_(a)) F1(Softplus, softplus_(a)) F1(Sigmoid, sigmoid_(a))
F1(Sqrt, std::sqrt(a)) F1(Rsqrt, 1 / std::sqrt(a)) F1(Recip, 1 / a) F1(Sin, std::sin(a)) F1(Cos, std::cos(a)) F1(Floor, std::floor(a)) F1(Ceil, std::ceil(a)) F1(Round, std::nearbyint(a))
F1(Lgamma, std::lgamma(a)) F1(Same, a)
F2(Add, a + b) F2(Sub, a - b) F2(Mul, a * b) F2(Div, a / b) F2(Max, a > b ? a : b != b ? b : a != a ? a : b) F2(Min, a < b ? a : b != b ? b : a != a ? a : b) F2(Pow, std::pow(a, b))
C2(Lt, a < b) C2(Le, a <= b) C2(Gt, a > b) C2(Ge, a >= b) C2(Eq, a == b) C2(Ne, a != b)
F2(And, (T)(a & b)) F2(Or, (T)(a | b)) F2(Xor, (T)(a ^ b))
struct Not { static inline uint8_t f(uint8_t a) { return !a; } };
F3(Fma, a * b + c) F3(Fms, a * b - c) F3(Fnma, c - a * b) F3(Lerp, a + c * (b - a))

typedef std::unordered_map<std::string, Kernel> Kernels;
static Kernels kernels;

template <class T, class F> static void add1(const std::string& name) { kernels[name + ".v"] = unary<T, T, F>; }
template <class T, class F, class R = T> static void add2(const std::string& name) {
    kernels[name + ".vv"] = binary<T, R, F, false, false>;
    kernels[name + ".vs"] = binary<T, R, F, false, true>;
    kernels[name + ".sv"] = binary<T, R, F, true, false>;
    
}
template <class T, class F> static void add3(const std::string& name) {
    kernels[name + ".vvv"] = ternary<T, F, false, false, false>;
    kernels[name + ".vvs"] = ternary<T, F, false, false, true>;
    kernels[name + ".vsv"] = ternary<T, F, false, true, false>;
    kernels[name + ".svv"] = ternary<T, F, true, false, false>;
    kernels[name + ".vss"] = ternary<T, F, false, true, true>;
    kernels[name + ".svs"] = ternary<T, F, true, false, true>;
    kernels[name + ".ssv"] = ternary<T, F, true, true, false>;
    
}
template <class T> static void add_any(const std::string& t) {  // of every type
    kernels["where." + t + ".vvv"] = where<T, false, false>;
    kernels["where." + t + ".vsv"] = where<T, true, false>;
    kernels["where." + t + ".vvs"] = where<T, false, true>;
    kernels["where." + t + ".vss"] = where<T, true, true>;
    kernels["load." + t] = strided<T, false>;
    kernels["store." + t] = strided<T, true>;
    kernels["same." + t + ".v"] = unary<T, T, Same>;
    kernels["same." + t + ".s"] = fill<T>;
    kernels["to_f32." + t + ".v"] = convert<T, float>;
    kernels["to_f64." + t + ".v"] = convert<T, double>;
    kernels["to_i64." + t + ".v"] = convert<T, int64_t>;
    kernels["to_b8." + t + ".v"] = to_bool<T>;
    add2<T, Lt, uint8_t>("lt." + t), add2<T, Le, uint8_t>("le." + t), add2<T, Gt, uint8_t>("gt." + t);
    add2<T, Ge, uint8_t>("ge." + t), add2<T, Eq, uint8_t>("eq." + t), add2<T, Ne, uint8_t>("ne." + t);
}
template <class T> static void add_numbers(const std::string& t) {
    add1<T, Neg>("neg." + t), add1<T, Abs>("abs." + t), add1<T, Sign>("sign." + t), add1<T, Square>("square." + t);
    add2<T, Add>("add." + t), add2<T, Sub>("sub." + t), add2<T, Mul>("mul." + t), add2<T, Max>("max." + t), add2<T, Min>("min." + t);
}
template <class T> static void add_floats(const std::string& t) {
    add_numbers<T>(t);
    add1<T, Exp>("exp." + t), add1<T, Log>("log." + t), add1<T, Log1p>("log1p." + t), add1<T, Expm1>("expm1." + t);
    add1<T, Tanh>("tanh." + t), add1<T, Erf>("erf." + t), add1<T, Softplus>("softplus." + t), add1<T, Sigmoid>("sigmoid." + t);
    add1<T, Sqrt>("sqrt." + t), add1<T, Rsqrt>("rsqrt." + t), add1<T, Recip>("reciprocal." + t), add1<T, Relu>("relu." + t);
    add1<T, Sin>("sin." + t), add1<T, Cos>("cos." + t), add1<T, Floor>("floor." + t), add1<T, Ceil>("ceil." + t);
    add1<T, Round>("round." + t), add1<T, Lgamma>("lgamma." + t), add1<T, Cube>("cube." + t);
    add2<T, Div>("div." + t), add2<T, Pow>("pow." + t);
    add3<T, Fma>("fma." + t), add3<T, Fms>("fms." + t), add3<T, Fnma>("fnma." + t), add3<T, Lerp>("lerp." + t);
}
static bool fill_table() {
    add_any<float>("f32"), add_any<double>("f64"), add_any<int64_t>("i64"), add_any<uint8_t>("b8");
    add_floats<float>("f32"), add_floats<double>("f64"), add_numbers<int64_t>("i64");
    add2<uint8_t, And>("and.b8"), add2<uint8_t, Or>("or.b8"), add2<uint8_t, Xor>("xor.b8");
    kernels["not.b8.v"] = unary<uint8_t, uint8_t, Not>;
    kernels["sum.f32"] = sum_block<float, float>;
    kernels["sum.f64"] = sum_block<double, double>;
    kernels["sum.i64"] = sum_block<int64_t, int64_t>;
    return true;
}
static bool filled = fill_table();

extern "C" void* tape_kernel(const char* name) {
    auto found = kernels.find(name);
    return found == kernels.end() ? nullptr : (void*)found->second;
}

// ------------------------------------------------------------------------------------------------------- instructions

struct Flushed {  // numbers below the normal range count as zero while it lives
#if defined(__x86_64__)
    unsigned before = _mm_getcsr();
    Flushed() { _mm_setcsr(before | 0x8040); }
    ~Flushed() { _mm_setcsr(before); }
#elif defined(__aarch64__)
    uint64_t before;
    Flushed() {
        asm volatile("mrs %0, fpcr" : "=r"(before));
        asm volatile("msr fpcr, %0" ::"r"(before | (1ull << 24)));
    }
    ~Flushed() { asm volatile("msr fpcr, %0" ::"r"(before)); }
#endif
};

static inline char* place(const Operand& x, char* scratch, int64_t at) {
    return (x.in_scratch ? scratch : (char*)0) + x.base + at * x.step;
}
static void run_blocks(const Group& g, int64_t first, int64_t last, char* scratch) {
    for (int64_t block = first; block < last; block++) {
        const int64_t at = block * g.block, n = g.numbers - at < g.block ? g.numbers - at : g.block;
        for (int64_t i = 0; i < g.num_lanes; i++) {
            const Lane& l = g.lanes[i];
            l.kernel(place(l.o, scratch, at), place(l.a, scratch, at), place(l.b, scratch, at), place(l.c, scratch, at), n, at, l.more);
        }
    }
}
static void run_group(const Group& g, int threads, const Program& program) {
    const int64_t blocks = (g.numbers + g.block - 1) / g.block;
#ifdef _OPENMP
    if (threads > 1) {
#pragma omp parallel num_threads(threads)
        {
            Flushed flushed;
            const int64_t all = omp_get_num_threads(), mine = omp_get_thread_num();
            run_blocks(g, blocks * mine / all, blocks * (mine + 1) / all, program.scratch + mine * program.scratch_size);
        }
    } else
#endif
        run_blocks(g, 0, blocks, program.scratch);
    for (int64_t i = 0; i < g.num_sums; i++) {
        double total = sum_of<double, double>(g.sums[i].partial, blocks);
        if (g.sums[i].type == 0) *(float*)g.sums[i].out = (float)total;
        else if (g.sums[i].type == 1) *(double*)g.sums[i].out = total;
        else *(int64_t*)g.sums[i].out = (int64_t)total;
    }
}

// o (m, n) = a (m, k) b (k, n) [+ bias (n)] by the BLAS, in whose order of columns it is o^T = b^T a^T. Matrices with
// strides that it does not take, which are rare, are multiplied here.
template <class T>
static void product(const Instruction& I, const Program& program, void* gemm) {
    // x: o a b bias | m n k | strides of o, a, b | stride of bias | batch, and its strides of o, a, b | for the BLAS
    const int64_t *x = I.x, m = x[4], n = x[5], k = x[6];
    for (int64_t i = 0; i < x[14]; i++) {
        T* o = (T*)x[0] + i * x[15];
        const T *a = (const T*)x[1] + i * x[16], *b = (const T*)x[2] + i * x[17], *bias = (const T*)x[3];
        if (bias && x[8] == 1 && x[13] == 1) {
            for (int64_t r = 0; r < m; r++) memcpy(o + r * x[7], bias, n * sizeof(T));
        } else if (bias || !x[18]) {
            for (int64_t r = 0; r < m; r++)
                for (int64_t c = 0; c < n; c++) o[r * x[7] + c * x[8]] = bias ? bias[c * x[13]] : 0;
        }
        if (!x[18]) {
            for (int64_t r = 0; r < m; r++)
                for (int64_t q = 0; q < k; q++)
                    for (int64_t c = 0; c < n; c++) o[r * x[7] + c * x[8]] += a[r * x[9] + q * x[10]] * b[q * x[11] + c * x[12]];
            continue;
        }
        const bool bt = !(x[12] == 1 && x[11] >= n), at = !(x[10] == 1 && x[9] >= k);
        const int M = (int)m, N = (int)n, K = (int)k, ldo = (int)x[7];
        const int ldb = (int)(bt ? x[12] : x[11]), lda = (int)(at ? x[10] : x[9]);
        const T one = 1, beta = bias ? 1 : 0;
        typedef void (*Gemm)(const char*, const char*, const int*, const int*, const int*, const T*, const T*, const int*, const T*, const int*, const T*, T*, const int*);
        ((Gemm)gemm)(bt ? "T" : "N", at ? "T" : "N", &N, &M, &K, &one, b, &ldb, a, &lda, &beta, o, &ldo);
    }
}

template <class T, int what>  // 0 sum, 1 maximum, 2 minimum
static void reduce(const Instruction& I) {
    // x: o a | type, what | kept: three sizes, strides of o, strides of a | reduced: three sizes, strides of a
    const int64_t *x = I.x, *n = x + 4, *so = x + 7, *sa = x + 10, *m = x + 13, *s = x + 16;
    T* out = (T*)x[0];
    const T* in = (const T*)x[1];
    const T begin = what == 0 ? (T)0 : what == 1 ? -std::numeric_limits<T>::infinity() : std::numeric_limits<T>::infinity();
    for (int64_t i = 0; i < n[0]; i++) for (int64_t j = 0; j < n[1]; j++) {
        T* o = out + i * so[0] + j * so[1];
        const T* a = in + i * sa[0] + j * sa[1];
        if (sa[2] == 1 && so[2] == 1 && n[2] > 1) {  // columns side by side: add whole rows
            for (int64_t l = 0; l < n[2]; l++) o[l] = begin;
            for (int64_t p = 0; p < m[0]; p++) for (int64_t q = 0; q < m[1]; q++) for (int64_t r = 0; r < m[2]; r++) {
                const T* row = a + p * s[0] + q * s[1] + r * s[2];
                const int64_t width = n[2];
#pragma GCC ivdep
                for (int64_t l = 0; l < width; l++) o[l] = what == 0 ? o[l] + row[l] : what == 1 ? Max::f(o[l], row[l]) : Min::f(o[l], row[l]);
            }
            continue;
        }
        for (int64_t l = 0; l < n[2]; l++) {
            T total = begin;
            for (int64_t p = 0; p < m[0]; p++) for (int64_t q = 0; q < m[1]; q++) {
                const T* row = a + l * sa[2] + p * s[0] + q * s[1];
                if (what == 0) total += sum_of<T, T>(row, m[2], s[2]);
                else for (int64_t r = 0; r < m[2]; r++) total = what == 1 ? Max::f(total, row[r * s[2]]) : Min::f(total, row[r * s[2]]);
            }
            o[l * so[2]] = total;
        }
    }
}

template <class T>
static void gather_or_add(const Instruction& I) {
    // x: o a index | type | rows, columns of the index | strides of o, a, index. Along the last dimension.
    const int64_t* x = I.x;
    T* o = (T*)x[0];
    const T* a = (const T*)x[1];
    const int64_t* index = (const int64_t*)x[2];
    for (int64_t i = 0; i < x[4]; i++) for (int64_t j = 0; j < x[5]; j++) {
        const int64_t at = index[i * x[10] + j * x[11]];
        if (I.what == GATHER) o[i * x[6] + j * x[7]] = a[i * x[8] + at * x[9]];
        else o[i * x[6] + at * x[7]] += a[i * x[8] + j * x[9]];
    }
}

static void move_rows(const Instruction& I) {
    // x: o a index | rows, bytes of a row | bytes from a row to the next where the index points, rows there
    const int64_t *x = I.x, *index = (const int64_t*)x[2];
    for (int64_t i = 0; i < x[3]; i++) {
        const int64_t at = (index[i] < 0 ? index[i] + x[6] : index[i]) * x[5];
        if (I.what == TAKE_ROWS) memcpy((char*)x[0] + i * x[4], (const char*)x[1] + at, x[4]);
        else memcpy((char*)x[0] + at, (const char*)x[1] + i * x[4], x[4]);
    }
}

static void run(const Program& p, const Instruction& I) {
    switch (I.what) {
        case GROUP: run_group(*(const Group*)I.x[0], I.threads, p); break;
        case PRODUCT: I.x[19] ? product<double>(I, p, p.dgemm) : product<float>(I, p, p.sgemm); break;
        case REDUCE:
            if (I.x[2]) I.x[3] == 0 ? reduce<double, 0>(I) : I.x[3] == 1 ? reduce<double, 1>(I) : reduce<double, 2>(I);
            else I.x[3] == 0 ? reduce<float, 0>(I) : I.x[3] == 1 ? reduce<float, 1>(I) : reduce<float, 2>(I);
            break;
        case TAKE_ROWS: case PUT_ROWS: move_rows(I); break;
        case GATHER: case SCATTER_ADD: I.x[3] ? gather_or_add<double>(I) : gather_or_add<float>(I); break;
    }
}

// Goes on to the next operation that has no kernel here, and returns its number; -1 at the end of the steps. The caller
// does the operation, and not a function called from here: Python ignores an exception, as of Ctrl-C, on the way into
// such a function.
extern "C" int64_t tape_run(Program* program, int64_t num_steps) {
    Flushed flushed;
    Program& p = *program;
    for (; p.step < num_steps; p.step++, p.next = 0) {
        const Instruction* table = p.step < 0 ? p.once : p.steps;
        const int64_t length = p.step < 0 ? p.num_once : p.num_steps;
        while (p.next < length) {
            const Instruction& I = table[p.next++];
            if (I.what == CALL) return I.x[0];
            run(p, I);
        }
    }
    return -1;
}

// --------------------------------------------------------------------------------------------------- normal numbers

// The state of torch's generator on a CPU: a Mersenne Twister (Matsumoto and Nishimura 1998) with room for what else
// torch keeps.
struct Generator {
    uint64_t seed;
    int32_t left, seeded;  // numbers left in the state, and one
    uint64_t next, state[624];
};
static inline uint32_t mixed(uint32_t u, uint32_t v) {
    return (((u & 0x80000000u) | (v & 0x7fffffffu)) >> 1) ^ (-(v & 1u) & 0x9908b0dfu);
}
static void turn(uint32_t* s) {
    _Pragma("GCC ivdep") for (int j = 0; j < 227; j++) s[j] = s[j + 397] ^ mixed(s[j], s[j + 1]);
    for (int start = 227; start < 623; start += 227) {
        const int end = start + 227 < 623 ? start + 227 : 623;
        _Pragma("GCC ivdep") for (int j = start; j < end; j++) s[j] = s[j - 227] ^ mixed(s[j], s[j + 1]);
    }
    s[623] = s[396] ^ mixed(s[623], s[0]);
}
struct Stream {
    uint32_t state[625];
    int64_t next, left;
    void uniforms(float* o, int64_t n) {  // 24 bits of each number
        while (n) {
            if (left == 0) turn(state), next = 0, left = 624;
            const int64_t m = n < left ? n : left;
            const uint32_t* s = state + next;
            _Pragma("GCC ivdep") for (int64_t k = 0; k < m; k++) {
                uint32_t y = s[k];
                y ^= y >> 11;
                y ^= (y << 7) & 0x9d2c5680u;
                y ^= (y << 15) & 0xefc60000u;
                y ^= y >> 18;
                o[k] = (float)(int32_t)(y & 0xffffffu) * 5.9604644775390625e-8f;
            }
            o += m, n -= m, next += m, left -= m;
        }
    }
};
static inline void polar(float u, float v, float& first, float& second) {  // Box and Muller 1958
    float r = std::sqrt(-2.f * log_positive(1.f - u));
    float t = 2.f * v;  // half turns
    float shifted = 2.f * t + 12582912.f, q = shifted - 12582912.f;
    int32_t quarter = bits<int32_t>(shifted);
    float y = (t - 0.5f * q) * 3.14159265358979f, z = y * y;
    float s = ((-1.9515295891E-4f * z + 8.3321608736E-3f) * z - 1.6666654611E-1f) * z * y + y;
    float c = ((2.443315711809948E-5f * z - 1.388731625493765E-3f) * z + 4.166664568298827E-2f) * z * z - 0.5f * z + 1.f;
    float sine = quarter & 1 ? c : s, cosine = quarter & 1 ? s : c;
    sine = quarter & 2 ? -sine : sine;
    cosine = (quarter + 1) & 2 ? -cosine : cosine;
    first = r * cosine, second = r * sine;
}
static void sixteens(float* o, int64_t count) {  // pairs of uniform numbers, eight apart, to pairs of normal numbers
    const int MANY = 16;
    float u[8 * MANY], v[8 * MANY];
    for (int64_t start = 0; start < count; start += MANY) {
        const int64_t m = count - start < MANY ? count - start : MANY;
        float* p = o + 16 * start;
        for (int64_t k = 0; k < m; k++) memcpy(u + 8 * k, p + 16 * k, 32), memcpy(v + 8 * k, p + 16 * k + 8, 32);
        _Pragma("GCC ivdep") for (int64_t k = 0; k < 8 * m; k++) polar(u[k], v[k], u[k], v[k]);
        for (int64_t k = 0; k < m; k++) memcpy(p + 16 * k, u + 8 * k, 32), memcpy(p + 16 * k + 8, v + 8 * k, 32);
    }
}

// Fills n >= 16 numbers with those that torch draws, up to the rounding of logarithms and sines, and moves the generator on.
extern "C" void tape_normals(Generator* generator, float* o, int64_t n, int64_t threads) {
    Stream stream;
    for (int k = 0; k < 624; k++) stream.state[k] = (uint32_t)generator->state[k];
    stream.next = (int64_t)generator->next, stream.left = generator->left - 1;
    stream.uniforms(o, n);
    const int64_t count = n / 16, parts = n < 1 << 17 ? 1 : threads;
    _Pragma("omp parallel for num_threads(parts) schedule(static) if (parts > 1)")
    for (int64_t part = 0; part < parts; part++) {
        const int64_t first = count * part / parts, last = count * (part + 1) / parts;
        sixteens(o + 16 * first, last - first);
    }
    if (n % 16) stream.uniforms(o + n - 16, 16), sixteens(o + n - 16, 1);
    for (int k = 0; k < 624; k++) generator->state[k] = stream.state[k];
    generator->next = (uint64_t)stream.next, generator->left = (int32_t)stream.left + 1;
}
