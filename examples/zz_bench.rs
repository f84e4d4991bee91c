use hcomm::*;
use std::time::Instant;
#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut comm = Communicator::from_env().await?;
    let n = comm.size() as f32;
    let sizes = std::env::var("SIZES").unwrap_or("8,1024,65536,1048576,16777216,67108864".into());
    for bytes in sizes.split(",").map(|s| s.parse::<usize>().unwrap()) {
        let count = bytes/4;
        let mut b = Buffer::<f32>::zeroed(count);
        for (i,x) in b.iter_mut().enumerate() { *x = comm.rank().0 as f32 + (i%7) as f32; }
        b = comm.all_reduce(b, ReduceOp::Sum).await?;
        for (i,x) in b.iter().enumerate() { assert_eq!(*x, n*(n-1.0)/2.0 + n*(i%7) as f32, "{bytes} {i}"); }
        b.fill(0.0);
        let iters = (std::env::var("BUDGET").map_or(400_000_000, |b| b.parse().unwrap())/ (bytes*20+20_000)).clamp(7, 20000);
        for _ in 0..iters.min(50)/3+1 { b = comm.all_reduce(b, ReduceOp::Sum).await?; }
        let mut t = vec![];
        for _ in 0..iters { let s = Instant::now(); b = comm.all_reduce(b, ReduceOp::Sum).await?; t.push(s.elapsed().as_nanos() as f64/1e3); }
        t.sort_by(|a,b| a.total_cmp(b));
        if comm.rank().0==0 { println!("{bytes:>10} p50 {:>10.2} p99 {:>10.2} min {:>10.2} n {iters}", t[iters/2], t[iters*99/100], t[0]); }
    }
    Ok(())
}
