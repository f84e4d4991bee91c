//! A message that was found is received once.

use hcomm::Message;

async fn twice(message: Message<'_>) {
    let _ = message.recv(vec![0u8; 4]).await;
    let _ = message.recv(vec![0u8; 4]).await;
}

fn main() {}
