//! A relay that loses answers: it passes requests on and cuts the connection instead of answering.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// Starts a relay to `service`. Of every connection it passes one exchange on; while `lose` is above zero
/// it takes one from it and drops the answer.
pub(crate) async fn start(service: SocketAddr, lose: Arc<AtomicU32>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            tokio::spawn(exchange(client, service, Arc::clone(&lose)));
        }
    });
    url
}

async fn exchange(mut client: TcpStream, service: SocketAddr, lose: Arc<AtomicU32>) -> Option<()> {
    let mut server = TcpStream::connect(service).await.ok()?;
    loop {
        let message = read_message(&mut client).await?;
        server.write_all(&message).await.ok()?;
        // The answer is there: the request was taken in.
        let answer = read_message(&mut server).await?;
        let lost = lose.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1));
        if lost.is_ok() {
            return None;
        }
        client.write_all(&answer).await.ok()?;
    }
}

/// One HTTP message with a content length.
async fn read_message(stream: &mut TcpStream) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        if let Some(end) = bytes.windows(4).position(|w| w == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&bytes[..end]).to_lowercase();
            let length = head.lines().find_map(|line| line.strip_prefix("content-length:"));
            let length: usize = length.map_or(0, |text| text.trim().parse().unwrap());
            if bytes.len() >= end + 4 + length {
                return Some(bytes);
            }
        }
        match stream.read(&mut buffer).await {
            Ok(0) | Err(_) => return None,
            Ok(read) => bytes.extend_from_slice(&buffer[..read]),
        }
    }
}
