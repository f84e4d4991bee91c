//! Lines of many ranks as one stream.
//!
//! One thread per stream of this process writes whole lines. Readers wait for room in its queue, so that what a slow
//! terminal can't take stays in the ranks' pipes. When our own output is closed (`| head`), the ranks' pipes are
//! closed too, and ranks that go on writing get SIGPIPE as usual.

use std::io::{self, Write};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, BufReader};
use tokio::sync::{mpsc, oneshot, watch};

/// A longer line is cut: what has no end must not fill the memory.
const LINE_BYTES_MAX: usize = 64 << 10;
/// Lines that wait for a slow terminal, of all ranks together.
const LINES_MAX: usize = 64;
/// How long a pipe is read on after all ranks have ended: a process that left its rank's group may hold it open.
const HELD_MAX: Duration = Duration::from_millis(500);

/// One stream of this process.
pub struct Stream {
    lines: mpsc::Sender<Vec<u8>>,
    written: oneshot::Receiver<()>,
}

impl Stream {
    /// Starts the thread that writes.
    pub fn to(mut sink: impl Write + Send + 'static) -> Self {
        let (lines, mut queue) = mpsc::channel::<Vec<u8>>(LINES_MAX);
        let (done, written) = oneshot::channel();
        std::thread::spawn(move || {
            while let Some(line) = queue.blocking_recv() {
                if sink.write_all(&line).and_then(|()| sink.flush()).is_err() {
                    break;
                }
            }
            drop(queue);
            let _ = done.send(());
        });
        Stream { lines, written }
    }

    /// Passes on what `rank` writes to this pipe, until it ends or all ranks have.
    pub fn take(
        &self,
        rank: u32,
        pipe: impl AsyncRead + Unpin + Send + 'static,
        ended: watch::Receiver<bool>,
    ) {
        tokio::spawn(pass_on(rank, pipe, self.lines.clone(), ended));
    }

    /// Waits until everything is written.
    pub async fn finish(self) {
        drop(self.lines);
        let _ = self.written.await;
    }
}

async fn pass_on(
    rank: u32,
    pipe: impl AsyncRead + Unpin,
    lines: mpsc::Sender<Vec<u8>>,
    mut ended: watch::Receiver<bool>,
) {
    let mut pipe = BufReader::new(pipe);
    let prefix = format!("[{rank}] ").into_bytes();
    loop {
        let mut line = prefix.clone();
        match next(&mut pipe, &mut line, &mut ended).await {
            Ok(0) | Err(_) => return,
            Ok(_) if line.last() != Some(&b'\n') => line.push(b'\n'),
            Ok(_) => {}
        }
        if lines.send(line).await.is_err() {
            return;
        }
    }
}

/// Appends the next line, or as much of it as is allowed; 0 at the end.
async fn next(
    pipe: &mut BufReader<impl AsyncRead + Unpin>,
    line: &mut Vec<u8>,
    ended: &mut watch::Receiver<bool>,
) -> io::Result<usize> {
    let before = line.len();
    let mut limited = pipe.take(LINE_BYTES_MAX as u64);
    let read = async { limited.read_until(b'\n', line).await.map(|_| ()) };
    let held = async {
        let _ = ended.wait_for(|ended| *ended).await;
        tokio::time::sleep(HELD_MAX).await;
        Ok(())
    };
    first(read, held).await?;
    Ok(line.len() - before)
}

/// Whichever ends first; the other is dropped.
async fn first<T>(one: impl Future<Output = T>, other: impl Future<Output = T>) -> T {
    let (mut one, mut other) = (std::pin::pin!(one), std::pin::pin!(other));
    std::future::poll_fn(|cx| match one.as_mut().poll(cx) {
        std::task::Poll::Pending => other.as_mut().poll(cx),
        ready => ready,
    })
    .await
}
