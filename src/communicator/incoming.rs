//! Messages as a stream, for services that answer whoever asks.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_core::{FusedStream, Stream};

use super::Communicator;
use super::messages::{MatchedProbe, Receive, Received, Source, Status, Tags};
use crate::element::Element;
use crate::error::Error;

impl Communicator {
    /// The messages with this tag, or with any, of all ranks as they come, each in a vector of its length.
    ///
    /// The stream takes a message once it is asked for the next: what nobody asks for waits at its sender, but for what a receiver
    /// keeps (see [`send`](Self::send)). So a service that is behind holds up those who send to it.
    ///
    /// Waiting for a message has no deadline here: a service may be idle. Items are errors where a message is of another type than `T`,
    /// or there is no memory for it; it is thrown away then. After an error for which there is no next message, as
    /// [`Left`](Error::Left) once all other ranks have left, the stream ends.
    ///
    /// # Cancel safety
    ///
    /// Dropping what waits for the next item takes nothing. Dropping the stream throws away a message that is just being received.
    ///
    /// ```
    /// use futures_util::StreamExt;
    /// use hcomm::{Communicator, Tags};
    ///
    /// # let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    /// # runtime.block_on(async {
    /// let mut ranks = Communicator::local(2);
    /// let (client, server) = (ranks.pop().unwrap(), ranks.pop().unwrap());
    /// client.send(0, 1, vec![3u32, 4]).await.unwrap();
    /// client.send(0, 1, vec![5u32]).await.unwrap();
    /// drop(client);
    /// let sums = server.incoming::<u32>(1).map(|asked| asked.map(|asked| asked.buffer.iter().sum::<u32>()));
    /// let sums: Vec<_> = sums.filter_map(async |sum| sum.ok()).collect().await;
    /// assert_eq!(sums, [7, 5]);
    /// # });
    /// ```
    pub fn incoming<T: Element>(&self, tag: impl Into<Tags>) -> Incoming<'_, T> {
        self.incoming_from(Source::Any, tag)
    }

    /// The same of one rank only, or of any.
    pub fn incoming_from<T: Element>(
        &self,
        source: impl Into<Source>,
        tag: impl Into<Tags>,
    ) -> Incoming<'_, T> {
        Incoming { communicator: self, source: source.into(), tag: tag.into(), at: At::Start }
    }
}

fn too_long(status: Status) -> Error {
    Error::Limit {
        operation: "incoming".into(),
        what: format!(
            "elements of {} of a message of rank {}, for which there is no memory,",
            status.dtype, status.source
        )
        .into(),
        limit: status.count as u64,
        hint: "send less at a time".into(),
    }
}

/// The stream of [`Communicator::incoming`].
#[must_use = "a stream does nothing unless it is asked for its items"]
pub struct Incoming<'a, T: Element> {
    communicator: &'a Communicator,
    source: Source,
    tag: Tags,
    at: At<'a, T>,
}

enum At<'a, T: Element> {
    Start,
    Probing(MatchedProbe<'a>),
    Receiving(Receive<Vec<T>>),
    End,
}

impl<T: Element> Stream for Incoming<'_, T> {
    type Item = Result<Received<Vec<T>>, Error>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        loop {
            match &mut this.at {
                At::Start => {
                    // A service may be idle for as long as it likes.
                    let comm = this.communicator;
                    this.at = At::Probing(comm.matched_probe_within(Duration::MAX, this.source, this.tag));
                }
                At::Probing(probe) => match ready!(Pin::new(probe).poll(cx)) {
                    Ok(message) => {
                        let status = message.status();
                        let mut buffer = Vec::new();
                        // Of another type it is refused whatever its length.
                        let count = if status.dtype == T::DTYPE { status.count } else { 0 };
                        if buffer.try_reserve_exact(count).is_err() {
                            this.at = At::Start;
                            return Poll::Ready(Some(Err(too_long(status))));
                        }
                        buffer.resize(count, T::zeroed());
                        this.at = At::Receiving(message.recv(buffer));
                    }
                    Err(error) => {
                        this.at = At::End;
                        return Poll::Ready(Some(Err(error)));
                    }
                },
                At::Receiving(receive) => {
                    let received = ready!(Pin::new(receive).poll(cx));
                    this.at = At::Start;
                    return Poll::Ready(Some(received.map_err(|failed| failed.error)));
                }
                At::End => return Poll::Ready(None),
            }
        }
    }
}

impl<T: Element> FusedStream for Incoming<'_, T> {
    fn is_terminated(&self) -> bool {
        matches!(self.at, At::End)
    }
}

impl<T: Element> fmt::Debug for Incoming<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Incoming")
            .field("source", &self.source)
            .field("tag", &self.tag)
            .finish_non_exhaustive()
    }
}
