//! What the drivers written in Rust share; `bench.h` is its twin in C.

pub fn parse_size(text: &str) -> usize {
    let (digits, unit) = match text.as_bytes().last() {
        Some(b'K') => (&text[..text.len() - 1], 1 << 10),
        Some(b'M') => (&text[..text.len() - 1], 1 << 20),
        _ => (text, 1),
    };
    digits.parse::<usize>().expect("a size is a number with an optional K or M") * unit
}

/// How many operations fit into `seconds`.
pub fn fitting(seconds: f64, op_us: f64, min: usize, max: usize) -> usize {
    ((seconds * 1e6 / op_us.max(0.01)) as usize).clamp(min, max)
}

/// The median, but at least a quarter of the mean: a peer that loses scheduler ticks must not run for ever.
pub fn typical_us(mut samples_us: Vec<f64>) -> f64 {
    samples_us.sort_by(f64::total_cmp);
    let mean = samples_us.iter().sum::<f64>() / samples_us.len() as f64;
    samples_us[samples_us.len() / 2].max(mean / 4.0)
}

pub fn process_cpu_us() -> f64 {
    // SAFETY: an all-zero rusage is a valid value, and getrusage writes only into it.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &mut usage);
        usage
    };
    let us = |time: libc::timeval| time.tv_sec as f64 * 1e6 + time.tv_usec as f64;
    us(usage.ru_utime) + us(usage.ru_stime)
}
