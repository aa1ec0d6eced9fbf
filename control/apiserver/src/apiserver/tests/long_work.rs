//! Holds up long work, so that a test sees what goes on meanwhile.

use std::sync::mpsc;

use tokio::{sync::oneshot, task::JoinHandle};
use windlass_kit::blocking::EXPRESSIONS;

/// One test at a time: two would each hold half of the threads.
static TURN: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// The threads for long work, held until this is dropped.
pub(crate) struct Held {
    _release: Vec<mpsc::Sender<()>>,
    _turn: tokio::sync::MutexGuard<'static, ()>,
}

pub(crate) async fn hold() -> Held {
    let turn = TURN.lock().await;
    let mut release = Vec::new();
    for _ in 0..EXPRESSIONS.usage().threads {
        let ((sender, held), (began, begun)) = (mpsc::channel::<()>(), oneshot::channel());
        EXPRESSIONS.spawn(move || {
            let _ = began.send(());
            let _ = held.recv();
        });
        begun.await.unwrap();
        release.push(sender);
    }
    Held { _release: release, _turn: turn }
}

/// Waits until a request has come to its long work, or has ended without any.
pub(crate) async fn until_waiting<T>(request: &JoinHandle<T>) {
    while EXPRESSIONS.usage().waiting == 0 && !request.is_finished() {
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
}
