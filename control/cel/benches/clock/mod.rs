//! Measures processor time.

use std::hint::black_box;

/// The processor time that this thread has taken, in nanoseconds: what else runs on the machine hardly changes it.
fn processor_time() -> u64 {
    let times = std::fs::read_to_string("/proc/thread-self/schedstat").expect("the kernel's times");
    times.split(' ').next().and_then(|time| time.parse().ok()).expect("a number")
}

/// Prints how much processor time one of these takes; `times` of them at a time, for at least a fifth of a second.
pub(crate) fn measure<T>(name: &str, times: u32, mut step: impl FnMut() -> T) -> f64 {
    let (start, mut done) = (processor_time(), 0);
    let taken = loop {
        for _ in 0..times {
            black_box(step());
        }
        done += times;
        let taken = processor_time() - start;
        if taken > 200_000_000 {
            break taken;
        }
    };
    let each = taken as f64 / f64::from(done) / 1e3;
    println!("{name:<40} {each:>9.2} µs");
    each
}
