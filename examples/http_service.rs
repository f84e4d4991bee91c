//! A web service that goes on answering while its rank is in all-reduces of 256 MiB: `cargo run --release --example http_service`
//! has four threads for ranks; `cargo run --example http_service 4` sums 4 MiB at a time.
//!
//! Rank 0 serves HTTP by axum, on the one thread that also takes part in the sums; all ranks help with requests, on a communicator
//! beside that of the sums. A request has the time that its client gives it (`hcomm::within`), and what is done for it is given up
//! on all ranks when its client goes away (`cancel_on_drop`).
//!
//! The example is its own client, and fails if a request is not answered as it should be, or a sum is wrong.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "an example shows its result")]

#[path = "common/ranks.rs"]
mod common;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::routing::get;
use common::Failure;
use futures_util::future::try_join_all;
use hcomm::{Communicator, Error, Rank, ReduceOp, Tag};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, Notify};

const ROUNDS: usize = 3;
const MIB: usize = 256;

const FRONT: Rank = Rank(0);
/// What a request is about, from the front to all: a value, and 1 if the last rank is to be slow.
const ASK: Tag = Tag(0);
/// Lets the last rank go on.
const RELEASE: Tag = Tag(1);
/// What a client waits for that gives no time.
const REQUEST: Duration = Duration::from_secs(60);

fn main() -> std::process::ExitCode {
    common::run(rank)
}

async fn rank(mut comm: Communicator) -> Result<(), Failure> {
    if comm.size() < 2 {
        return Err("a service needs ranks that help: start two or more".into());
    }
    let mib = std::env::args().nth(1).map_or(Ok(MIB), |mib| mib.parse())?;
    let requests = comm.dup().await?;
    let helped = if comm.rank() == FRONT {
        let over = Arc::new(AtomicBool::new(false));
        let (summed, told) = tokio::join!(sums(&mut comm, mib, &over), front(requests, &over));
        summed?;
        println!("{ROUNDS} sums of {mib} MiB; {}", told?);
        [0, 0]
    } else {
        let over = AtomicBool::new(false);
        let (summed, helped) = tokio::join!(sums(&mut comm, mib, &over), help(requests));
        summed?;
        helped?
    };
    // Of each request that was given up, all ranks know.
    let helped = comm.all_reduce(helped.to_vec(), ReduceOp::Max).await?;
    if helped != [1, 2] {
        let [answered, given_up] = [helped[0], helped[1]];
        return Err(format!("{answered} requests were answered, and {given_up} given up").into());
    }
    comm.close().await?;
    Ok(())
}

// --- the sums

async fn sums(comm: &mut Communicator, mib: usize, over: &AtomicBool) -> Result<(), Failure> {
    let (me, n) = (comm.rank().0, comm.size() as u32);
    let mut buffer = vec![0f32; mib << 18];
    for round in 0..ROUNDS as u32 {
        // What takes long and awaits nothing is for another thread, as in any service.
        let fill = move || {
            let values = (0..).map(|at: u32| (at % 1000 + me + round) as f32);
            buffer.iter_mut().zip(values).for_each(|(place, value)| *place = value);
            buffer
        };
        let filled = tokio::task::spawn_blocking(fill).await?;
        let sum = comm.all_reduce(filled, ReduceOp::Sum).await?;
        let check = move || {
            let others = n * (n - 1) / 2 + n * round;
            let is_right =
                (0..).zip(&sum).all(|(at, sum): (u32, _)| *sum == (n * (at % 1000) + others) as f32);
            (sum, is_right)
        };
        let (sum, is_right) = tokio::task::spawn_blocking(check).await?;
        if !is_right {
            return Err(format!("the sum of round {round} is wrong").into());
        }
        buffer = sum;
    }
    over.store(true, Ordering::Release);
    Ok(())
}

// --- who helps with requests

/// How many requests were answered, and given up.
async fn help(mut requests: Communicator) -> Result<[u32; 2], Failure> {
    let is_last = requests.rank().index() + 1 == requests.size();
    let mut helped = [0, 0];
    loop {
        // For as long as there are none.
        let asked = requests.recv(FRONT, ASK, vec![0u32; 2]).timeout(Duration::MAX).await;
        let (value, slow) = match asked {
            Ok(asked) => (asked[0], asked[1] == 1),
            Err(failed) if matches!(failed.error, Error::Left { .. }) => return Ok(helped),
            Err(failed) => return Err(failed.into()),
        };
        if slow && is_last {
            requests.recv(FRONT, RELEASE, vec![0u32; 1]).await?;
        }
        match requests.all_reduce(vec![value], ReduceOp::Sum).await {
            Ok(_) => helped[0] += 1,
            // Its time was over, or its client has gone. The next request is not harmed.
            Err(failed) if !failed.error.is_fatal() => helped[1] += 1,
            Err(failed) => return Err(failed.into()),
        }
    }
}

// --- the service

#[derive(Clone)]
struct Service {
    requests: Arc<Mutex<Communicator>>,
    begun: Arc<Notify>,
    gone: Arc<Notify>,
}

/// Tells that a request's future is gone.
struct Gone(Arc<Notify>);

impl Drop for Gone {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

async fn front(requests: Communicator, over: &AtomicBool) -> Result<String, Failure> {
    let service =
        Service { requests: Arc::new(Mutex::new(requests)), begun: Arc::default(), gone: Arc::default() };
    let router = Router::new()
        .route("/health", get(async || "ok"))
        .route("/sum/{value}", get(sum))
        .route("/sum/{value}/slow", get(slow_sum))
        .route("/release", get(release))
        .with_state(service.clone());
    let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
    let address = listener.local_addr()?;
    let stop = Arc::new(Notify::new());
    let stopped = stop.clone();
    let serve = axum::serve(listener, router).with_graceful_shutdown(async move { stopped.notified().await });
    let check = async {
        let told = check(address, &service, over).await;
        stop.notify_one();
        told
    };
    let (served, told) = tokio::join!(serve, check);
    served?;
    // Those who help see that the service has left.
    drop(service);
    told
}

async fn sum(
    State(service): State<Service>,
    Path(value): Path<u32>,
    headers: HeaderMap,
) -> Result<String, StatusCode> {
    answer(service, value, false, &headers).await
}

async fn slow_sum(
    State(service): State<Service>,
    Path(value): Path<u32>,
    headers: HeaderMap,
) -> Result<String, StatusCode> {
    answer(service, value, true, &headers).await
}

async fn release(State(service): State<Service>) -> Result<&'static str, StatusCode> {
    let requests = service.requests.lock().await;
    let last = requests.size() as u32 - 1;
    requests.send(last, RELEASE, vec![0u32]).await.map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)?;
    Ok("released")
}

async fn answer(service: Service, value: u32, slow: bool, headers: &HeaderMap) -> Result<String, StatusCode> {
    let _gone = Gone(service.gone.clone());
    let given = headers.get("x-deadline-ms").and_then(|ms| ms.to_str().ok()?.parse().ok());
    let limit = given.map_or(REQUEST, Duration::from_millis);
    let mut requests = service.requests.lock().await;
    // Whoever helps is asked whatever becomes of this: all is called before anything is awaited, so that a request that is dropped
    // leaves all ranks at the same call.
    let ask = |rank: u32| requests.send(rank, ASK, vec![value, u32::from(slow)]);
    let asked: Vec<_> = (1..requests.size() as u32).map(ask).collect();
    // What is called for it has what is left of its time, and is given up if its client goes.
    let summed = hcomm::within(limit, async {
        let sum = requests.all_reduce(vec![value], ReduceOp::Sum).cancel_on_drop();
        service.begun.notify_one();
        try_join_all(asked).await?;
        Ok::<_, Error>(sum.await?)
    });
    match summed.await {
        Ok(sum) => Ok(sum[0].to_string()),
        Err(error) if error.is_deadline() => Err(StatusCode::GATEWAY_TIMEOUT),
        Err(_) => Err(StatusCode::INTERNAL_SERVER_ERROR),
    }
}

// --- the client

/// What it saw.
async fn check(address: SocketAddr, service: &Service, over: &AtomicBool) -> Result<String, Failure> {
    let is_it = |got: &(u16, String), status, body: &str| {
        let is_it = got.0 == status && (body.is_empty() || got.1 == body);
        if is_it { Ok(()) } else { Err(Failure::from(format!("{got:?} instead of {status} {body:?}"))) }
    };
    let mut latencies = Vec::new();
    while !over.load(Ordering::Acquire) || latencies.is_empty() {
        let begun = Instant::now();
        is_it(&fetch(address, "/health", "").await?, 200, "ok")?;
        latencies.push(begun.elapsed());
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let ranks = service.requests.lock().await.size();
    is_it(&fetch(address, "/sum/7", "").await?, 200, &(7 * ranks).to_string())?;

    // A rank is slow, and the client has no time.
    is_it(&fetch(address, "/sum/7/slow", "x-deadline-ms: 50\r\n").await?, 504, "")?;
    is_it(&fetch(address, "/release", "").await?, 200, "released")?;

    // A rank is slow, and the client goes away.
    let (begun, gone) = (service.begun.clone(), service.gone.clone());
    while tokio::time::timeout(Duration::ZERO, begun.notified()).await.is_ok() {}
    while tokio::time::timeout(Duration::ZERO, gone.notified()).await.is_ok() {}
    let client = ask(address, "/sum/7/slow", "").await?;
    tokio::time::timeout(REQUEST, begun.notified()).await?;
    drop(client);
    tokio::time::timeout(REQUEST, gone.notified()).await?;
    is_it(&fetch(address, "/release", "").await?, 200, "released")?;

    latencies.sort_unstable();
    let [median, p99] = [50, 99].map(|percent| latencies[(latencies.len() - 1) * percent / 100]);
    let (count, max) = (latencies.len(), latencies[latencies.len() - 1]);
    Ok(format!(
        "{count} requests meanwhile, answered within {median:.1?}, 99 % within {p99:.1?}, all within {max:.1?}"
    ))
}

async fn ask(address: SocketAddr, path: &str, headers: &str) -> Result<TcpStream, Failure> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n{headers}\r\n");
    stream.write_all(request.as_bytes()).await?;
    Ok(stream)
}

/// Status and body.
async fn fetch(address: SocketAddr, path: &str, headers: &str) -> Result<(u16, String), Failure> {
    let mut answer = String::new();
    let mut stream = ask(address, path, headers).await?;
    tokio::time::timeout(REQUEST, stream.read_to_string(&mut answer)).await??;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or("an answer without an end of its head")?;
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    Ok((status.ok_or("an answer without a status")?, body.to_string()))
}
