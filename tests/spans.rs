//! What is traced of each call, in a process of its own: who traces is the same for all its threads, and was there before any call.

mod common;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{Link, world};
use hcomm::{Rank, ReduceOp};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

#[derive(Clone, Debug, Default)]
struct Seen {
    fields: BTreeMap<&'static str, String>,
    entered: usize,
    closed: bool,
}

impl Visit for Seen {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.fields.insert(field.name(), format!("{value:?}").trim_matches('"').to_string());
    }
}

/// All spans of operations, in the order in which they began.
#[derive(Clone, Default)]
struct Spans(Arc<Mutex<Vec<Seen>>>);

impl Spans {
    fn of_rank(&self, rank: &str) -> Vec<Seen> {
        let all = self.0.lock().unwrap();
        all.iter().filter(|span| span.fields.get("rank").is_some_and(|of| of == rank)).cloned().collect()
    }

    fn of(&self, id: &Id, act: impl FnOnce(&mut Seen)) {
        act(&mut self.0.lock().unwrap()[id.into_u64() as usize - 1]);
    }
}

impl Subscriber for Spans {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_span() && metadata.name() == "operation"
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut seen = Seen::default();
        span.record(&mut seen);
        let mut all = self.0.lock().unwrap();
        all.push(seen);
        Id::from_u64(all.len() as u64)
    }

    fn record(&self, id: &Id, values: &Record<'_>) {
        self.of(id, |seen| values.record(seen));
    }

    fn enter(&self, id: &Id) {
        self.of(id, |seen| seen.entered += 1);
    }

    fn try_close(&self, id: Id) -> bool {
        self.of(&id, |seen| seen.closed = true);
        true
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, _: &Event<'_>) {}
    fn exit(&self, _: &Id) {}
}

#[test]
fn each_call_is_a_span_until_its_future_is_done() {
    let spans = Spans::default();
    tracing::subscriber::set_global_default(spans.clone()).unwrap();
    let seen = spans.clone();
    world(Link::Memory, 2, move |mut comm| {
        comm.all_reduce(vec![1f32; 5], ReduceOp::Sum).wait().unwrap();
        let other = Rank(1 - comm.rank().0);
        let sent = comm.send(other, 3, vec![1u8; 2]);
        let late = comm.recv(other, 4, vec![0u8; 2]).timeout(Duration::from_millis(20));
        late.wait().unwrap_err();
        comm.recv(other, 3, vec![0u8; 2]).wait().unwrap();
        let me = comm.rank().to_string();
        assert!(seen.of_rank(&me).iter().any(|span| !span.closed), "the send is not awaited yet");
        sent.wait().unwrap();
        // Who leaves would end what the other waits for.
        comm.barrier().wait().unwrap();
    });
    for rank in ["0", "1"] {
        let spans = spans.of_rank(rank);
        let field = |at: usize, name: &str| spans[at].fields.get(name).cloned().unwrap_or_default();
        assert!(spans.iter().all(|span| span.closed && span.entered > 0), "{spans:#?}");
        let names: Vec<String> = (0..spans.len()).map(|at| field(at, "operation")).collect();
        assert_eq!(names, ["all_reduce", "send", "recv", "recv", "barrier"]);
        let told = ["communicator", "seq", "count", "dtype", "algorithm"].map(|name| field(0, name));
        assert_eq!(told, ["world", "0", "5", "f32", "mesh-two-shot"]);
        assert!(field(2, "error").contains("waited"), "{spans:#?}");
        assert!([0, 1, 3, 4].iter().all(|at| field(*at, "error").is_empty()), "{spans:#?}");
    }
}
