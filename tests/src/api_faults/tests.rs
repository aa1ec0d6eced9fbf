use std::sync::atomic::{AtomicBool, Ordering};

use axum::routing::post;
use futures::FutureExt as _;
use tokio::sync::Notify;

use super::*;

/// Whoever starts next would else list before it is stored, and do it a second time.
#[tokio::test]
async fn a_client_has_ended_when_the_server_has_finished_what_it_took() {
    let (taken, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let is_stored = Arc::new(AtomicBool::new(false));
    let handler = {
        let (taken, go_on, is_stored) = (taken.clone(), go_on.clone(), is_stored.clone());
        move || async move {
            taken.notify_one();
            go_on.notified().await;
            is_stored.store(true, Ordering::SeqCst);
        }
    };
    let faults = Faults::default();
    let mut way = Way { router: Router::new().route("/api/v1/pods", post(handler)), faults: Some(faults.clone()) };
    let request = Request::post("/api/v1/pods").body(ClientBody::empty()).unwrap();
    let client = tokio::spawn(way.call(request));
    taken.notified().await;
    faults.end();
    client.abort();
    assert!(client.await.unwrap_err().is_cancelled());
    assert!(faults.ended().now_or_never().is_none(), "the server works on its request");
    go_on.notify_one();
    faults.ended().await;
    assert!(is_stored.load(Ordering::SeqCst));
    assert!(faults.reborn().ended().now_or_never().is_none());
}
