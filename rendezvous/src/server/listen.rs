//! Accepting connections: a bounded number, each with a deadline for its headers.

use super::limits::Limits;
use axum::Router;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::{JoinHandle, JoinSet};

/// Pause after an error of `accept` that may last, such as too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves `router` on `listener` until the task is aborted, which ends its connections too.
pub(super) fn spawn(listener: TcpListener, router: Router, limits: Limits) -> JoinHandle<()> {
    let permits = Arc::new(Semaphore::new(limits.connections));
    tokio::spawn(async move {
        let mut connections = JoinSet::new();
        loop {
            while connections.try_join_next().is_some() {}
            let Ok(permit) = Arc::clone(&permits).acquire_owned().await else {
                return;
            };
            let stream = match listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::warn!(%error, "accept a connection to the rendezvous");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            // Small messages back and forth: waiting to fill a packet only costs time.
            if let Err(error) = stream.set_nodelay(true) {
                tracing::debug!(%error, "switch off delays on a connection");
            }
            let service = TowerToHyperService::new(router.clone());
            connections.spawn(async move {
                let served = hyper::server::conn::http1::Builder::new()
                    .timer(TokioTimer::new())
                    .header_read_timeout(limits.request_deadline)
                    .serve_connection(TokioIo::new(stream), service)
                    .await;
                if let Err(error) = served {
                    tracing::debug!(%error, "a connection to the rendezvous ended");
                }
                drop(permit);
            });
        }
    })
}
