//! Bytes per second of the reductions beside those of `memcpy`, counting the bytes of the result.
//!
//! The sources are compiled into the benchmark, because the kernel is no part of the public interface.

#![allow(unsafe_code)]

#[allow(dead_code, reason = "only sizes and names are of use here")]
#[path = "../src/element.rs"]
mod element;
#[allow(dead_code, unused_imports, unused_macros, reason = "its tests have no harness here")]
#[path = "../src/kernel/mod.rs"]
mod kernel;

use std::hint::black_box;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use element::{DType, ReduceOp};
use kernel::Reduction;

/// In the second-level cache, in the third-level cache, in main memory.
const SIZES: [(&str, usize); 3] = [("64KiB", 64 << 10), ("1MiB", 1 << 20), ("64MiB", 64 << 20)];

/// One of each kind: arithmetic, order, bits, truth.
const OPS: [ReduceOp; 4] = [ReduceOp::Sum, ReduceOp::Max, ReduceOp::BitAnd, ReduceOp::And];

fn all(criterion: &mut Criterion) {
    for (name, bytes) in SIZES {
        let mut buffers: Vec<Vec<u64>> = (0..4).map(|_| vec![0; bytes / 8]).collect();
        let starts: Vec<*mut u8> = buffers.iter_mut().map(|buffer| buffer.as_mut_ptr().cast()).collect();
        let mut group = criterion.benchmark_group(format!("{}/{name}", kernel::level()));
        group.throughput(Throughput::Bytes(bytes as u64));
        group
            .sample_size(10)
            .warm_up_time(Duration::from_millis(100))
            .measurement_time(Duration::from_millis(400));
        group.bench_function("memcpy", |bencher| {
            // SAFETY: both buffers are `bytes` long, distinct, and this thread's.
            bencher.iter(|| unsafe { kernel::copy(black_box(starts[0]), black_box(starts[1]), bytes) });
        });
        for (op, dtype) in OPS
            .iter()
            .flat_map(|op| DType::ALL.iter().map(move |dtype| (*op, *dtype)))
            .filter(|(op, dtype)| op.supports(*dtype))
        {
            for sources in [2, 4] {
                let srcs: Vec<*const u8> = starts[..sources].iter().map(|start| start.cast_const()).collect();
                let reduction = Reduction { dtype, op, divisor: 1 };
                group.bench_function(BenchmarkId::new(format!("{op}/{dtype}"), sources), |bencher| {
                    // SAFETY: the buffers are `bytes` long, aligned to 8, and this thread's; the first is the result.
                    bencher.iter(|| unsafe {
                        kernel::reduce(
                            reduction,
                            black_box(&starts[..1]),
                            black_box(&srcs),
                            bytes / dtype.size(),
                        );
                    });
                });
            }
        }
    }
}

criterion_group!(benches, all);
criterion_main!(benches);
