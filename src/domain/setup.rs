//! Runs rendezvous on a thread and runtime of its own, so that it works for callers without one, and for those that
//! block theirs.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use tokio::io::duplex;
use tokio::sync::oneshot;

use super::config::JoinConfig;
use super::meeting::Meeting;
use super::member::{Way, take_part};
use super::token::nonce;
use super::wait::{First, first};
use super::{Member, Membership, Phase, Sharing, identity, root};
use crate::error::InitError;

const THREAD_NAME: &str = "hcomm-setup";
/// Bytes on their way between the root and the member in its process.
const OWN_LINE_BYTES: usize = 16 << 10;

type Outcome = Result<Membership, InitError>;

/// The membership to come. Dropping it ends set-up: this rank's sockets close, and the other ranks are told that it
/// went away.
#[derive(Debug)]
#[must_use = "dropping it ends set-up"]
pub(crate) struct JoinFuture(oneshot::Receiver<Outcome>);

impl Future for JoinFuture {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context).map(|result| result.unwrap_or_else(|_| Err(thread_ended())))
    }
}

/// Joins; the future needs no particular executor, and set-up goes on whether or not it is polled.
pub(crate) fn join(config: JoinConfig) -> JoinFuture {
    let receiver = start(config).map(|(_, receiver)| receiver).unwrap_or_else(|error| {
        let (sender, receiver) = oneshot::channel();
        // The receiver is at hand, so that it can't fail.
        let _ = sender.send(Err(error));
        receiver
    });
    JoinFuture(receiver)
}

/// Joins on behalf of a caller that waits. Works inside a runtime as well, though it blocks its thread.
pub(crate) fn join_blocking(config: JoinConfig) -> Result<Membership, InitError> {
    let (thread, mut receiver) = start(config)?;
    thread.join().map_err(|_| thread_ended())?;
    receiver.try_recv().unwrap_or_else(|_| Err(thread_ended()))
}

fn start(mut config: JoinConfig) -> Result<(JoinHandle<()>, oneshot::Receiver<Outcome>), InitError> {
    config.validate()?;
    config.deadlines = config.deadlines.bounded();
    let (mut sender, receiver) = oneshot::channel();
    let work = move || {
        if let Some(outcome) = run(config, &mut sender) {
            // Whoever has stopped waiting meanwhile closes the connections by that.
            let _ = sender.send(outcome);
        }
    };
    let thread = Builder::new().name(THREAD_NAME.into()).spawn(work).map_err(|source| no_thread(&source))?;
    Ok((thread, receiver))
}

/// `None` if nobody waits any more. All descriptors of set-up are closed when it returns.
fn run(config: JoinConfig, sender: &mut oneshot::Sender<Outcome>) -> Option<Outcome> {
    let built = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .thread_name(THREAD_NAME)
        .build();
    let runtime = match built {
        Ok(runtime) => runtime,
        Err(error) => return Some(Err(InitError::Io { what: "making the set-up runtime".into(), error })),
    };
    let result = match runtime.block_on(first(establish(config), sender.closed())) {
        First::Left(result) => Some(result),
        First::Right(()) => None,
    };
    // A name look-up that hangs must not hold anybody up.
    runtime.shutdown_timeout(Duration::ZERO);
    result
}

async fn establish(config: JoinConfig) -> Result<Membership, InitError> {
    if config.world == 1 {
        return alone(&config);
    }
    let config = Arc::new(config);
    if config.rank.0 != 0 {
        return take_part(config, Way::Outside).await;
    }
    let meeting = Meeting::open(&config).await?;
    tracing::debug!(root = meeting.shown, world = config.world, "rank 0 listens");
    let (own_line, root_line) = duplex(OWN_LINE_BYTES);
    let way = Way::Own { stream: own_line, own: meeting.own, key: meeting.key.clone() };
    let server = tokio::spawn(root::serve(config.clone(), meeting, nonce()?, root_line));
    let result = take_part(config, way).await;
    // The others are told before this rank reports.
    let _ = server.await;
    result
}

fn alone(config: &JoinConfig) -> Result<Membership, InitError> {
    let address = ([127, 0, 0, 1], 0).into();
    let members: Vec<Member> = vec![identity::this_process(address, Sharing::Unwanted)];
    let phases = [Phase::Handshake, Phase::Topology, Phase::Paths, Phase::Resources, Phase::Ready];
    Ok(Membership {
        rank: config.rank,
        session: nonce()?,
        members,
        links: vec![None],
        sharing: vec![0],
        phases: phases.map(|phase| (phase, Duration::ZERO)).to_vec(),
    })
}

fn no_thread(source: &io::Error) -> InitError {
    InitError::Limit {
        what: "threads".into(),
        needed: 1,
        available: 0,
        hint: format!("starting a thread failed ({source}): raise the limit of tasks (ulimit -u, pids.max)"),
    }
}

fn thread_ended() -> InitError {
    let reason = "its thread ended without a result".into();
    InitError::Lost { who: "set-up in this process".into(), phase: "handshake".into(), reason }
}
