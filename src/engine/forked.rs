//! A process that was forked from the one that an engine belongs to: it has copies of everything, and must move nothing.

use std::sync::Arc;

use super::call::{Op, Outcome, Request};
use crate::error::Error;

/// A call in a process that was forked from the engine's.
#[cold]
pub(super) fn forked(request: Request) -> Arc<Op> {
    let op = Arc::new(Op::default());
    let error = Error::Forked { operation: request.desc.operation.into() };
    op.finish(Outcome { result: Err(error), parts: Some(request.parts), arrival: None });
    op
}

/// A call that was in flight when this process was forked: here it ends, and there it goes on.
#[cold]
pub(super) fn end_forked(op: &Op) {
    if !op.is_done() {
        let error = Error::Forked { operation: "an operation in flight".into() };
        op.finish(Outcome { result: Err(error), parts: None, arrival: None });
    }
}
