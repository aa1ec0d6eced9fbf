//! What is compiled of a stored object when a request first needs it, on a thread for long work.

use std::{
    fmt,
    sync::{Arc, OnceLock},
};

use crate::apiserver::{ApiError, pipeline::long_work::apart};

/// Something that is compiled once.
pub(crate) struct Deferred<T> {
    /// Whose expressions they are, for the fairness of long work.
    owner: String,
    compiled: Arc<OnceLock<Arc<T>>>,
    compile: Arc<dyn Fn() -> T + Send + Sync>,
    /// One request has it compiled, for which the others wait without a thread.
    turn: tokio::sync::Mutex<()>,
}

impl<T> fmt::Debug for Deferred<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Deferred").field("owner", &self.owner).finish_non_exhaustive()
    }
}

impl<T: Send + Sync + 'static> Deferred<T> {
    /// Of an owner's expressions.
    pub(crate) fn new(owner: String, compile: impl Fn() -> T + Send + Sync + 'static) -> Self {
        Self { owner, compiled: Arc::default(), compile: Arc::new(compile), turn: tokio::sync::Mutex::default() }
    }

    /// Whose expressions they are.
    pub(crate) fn owner(&self) -> &str {
        &self.owner
    }

    /// What was compiled, now or before.
    ///
    /// # Errors
    /// When there is too much long work, or the compiler panicked.
    pub(crate) async fn get(&self) -> Result<Arc<T>, ApiError> {
        if let Some(compiled) = self.compiled.get() {
            return Ok(Arc::clone(compiled));
        }
        let _turn = self.turn.lock().await;
        if let Some(compiled) = self.compiled.get() {
            return Ok(Arc::clone(compiled));
        }
        let (compiled, compile) = (Arc::clone(&self.compiled), Arc::clone(&self.compile));
        // What a request that has ended meanwhile has begun counts for the next one.
        apart(&self.owner, move || Arc::clone(compiled.get_or_init(|| Arc::new(compile())))).await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test]
    async fn it_is_compiled_once_and_when_it_is_needed() {
        static TIMES: AtomicUsize = AtomicUsize::new(0);
        let deferred = Deferred::new("deferred/test".to_owned(), || TIMES.fetch_add(1, Ordering::Relaxed));
        assert_eq!(TIMES.load(Ordering::Relaxed), 0);
        let (one, other) = tokio::join!(deferred.get(), deferred.get());
        assert_eq!((*one.unwrap(), *other.unwrap(), *deferred.get().await.unwrap()), (0, 0, 0));
        assert_eq!(TIMES.load(Ordering::Relaxed), 1);
    }

    #[tokio::test]
    async fn a_compiler_that_panics_fails_the_request() {
        let deferred: Deferred<()> = Deferred::new("deferred/panics".to_owned(), || std::panic::panic_any(()));
        for _ in 0..2 {
            assert_eq!(deferred.get().await.unwrap_err().code, 500);
        }
    }
}
