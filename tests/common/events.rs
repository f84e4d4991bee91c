//! What is told by `tracing`, kept for tests.

#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use tokio::time::Instant;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Level, Metadata, Subscriber};

/// One warning, or something graver.
#[derive(Clone, Debug)]
pub struct Event {
    pub level: Level,
    pub message: String,
    pub fields: BTreeMap<&'static str, String>,
    /// On simulated time, if it was told there.
    pub at: Instant,
}

impl Event {
    /// What a field says; nothing if there is none.
    pub fn field(&self, name: &str) -> &str {
        self.fields.get(name).map_or("", |text| text)
    }
}

/// All that was told so far.
#[derive(Clone, Debug, Default)]
pub struct Events(Arc<Mutex<Vec<Event>>>);

impl Events {
    /// Keeps what this thread tells while it does this.
    pub fn while_doing<R>(&self, act: impl FnOnce() -> R) -> R {
        tracing::subscriber::with_default(self.clone(), act)
    }

    /// What all threads of this process tell from now on, but for those that do something under
    /// [`while_doing`](Self::while_doing). All callers share it.
    pub fn of_all_threads() -> &'static Events {
        static EVENTS: OnceLock<Events> = OnceLock::new();
        EVENTS.get_or_init(|| {
            let events = Events::default();
            tracing::subscriber::set_global_default(events.clone()).unwrap();
            events
        })
    }

    /// Those whose message has this in it, in the order in which they came.
    pub fn with(&self, text: &str) -> Vec<Event> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().filter(|event| event.message.contains(text)).cloned().collect()
    }
}

impl Subscriber for Events {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN && metadata.target().starts_with("hcomm")
    }

    fn event(&self, event: &tracing::Event<'_>) {
        let (mut fields, level) = (BTreeMap::new(), *event.metadata().level());
        event.record(&mut Fields(&mut fields));
        let message = fields.remove("message").unwrap_or_default();
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.push(Event { level, message, fields, at: Instant::now() });
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

struct Fields<'a>(&'a mut BTreeMap<&'static str, String>);

impl Visit for Fields<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name(), value.into());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }
}
