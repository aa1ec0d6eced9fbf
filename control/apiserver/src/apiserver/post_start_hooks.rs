//! What is done once after a start, before the server is alive and ready: upstream's post-start hooks, by their names. The part of
//! the server that does it says when it is done.

use parking_lot::Mutex;

/// The hooks of a server.
#[derive(Debug, Default)]
pub(crate) struct PostStartHooks {
    hooks: Mutex<Vec<Hook>>,
}

#[derive(Debug)]
struct Hook {
    name: &'static str,
    is_done: bool,
}

impl PostStartHooks {
    /// From now on the server waits for this one.
    pub(crate) fn add(&self, name: &'static str) {
        let mut hooks = self.hooks.lock();
        if hooks.iter().all(|hook| hook.name != name) {
            hooks.push(Hook { name, is_done: false });
        }
    }

    /// It is done. One that nobody waits for may be done, too.
    pub(crate) fn finish(&self, name: &str) {
        self.hooks.lock().iter_mut().filter(|hook| hook.name == name).for_each(|hook| hook.is_done = true);
    }

    /// Waits for what a hook does; it is done when that succeeds.
    ///
    /// # Errors
    /// Those of what it does.
    pub(crate) async fn run<E>(&self, name: &'static str, work: impl Future<Output = Result<(), E>>) -> Result<(), E> {
        self.add(name);
        work.await?;
        self.finish(name);
        Ok(())
    }

    /// The names of the health checks of all hooks, in the order in which they were added, and whether each is done.
    pub(super) fn checks(&self) -> Vec<(String, bool)> {
        self.hooks.lock().iter().map(|hook| (format!("poststarthook/{}", hook.name), hook.is_done)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_hook_is_done_when_its_work_succeeds() {
        let hooks = PostStartHooks::default();
        hooks.finish("other");
        hooks.add("a");
        assert_eq!(hooks.run("b/c", async { Err("no") }).await, Err("no"));
        let states = || hooks.checks().into_iter().map(|(_, is_done)| is_done).collect::<Vec<_>>();
        assert_eq!(states(), [false, false]);
        hooks.run("b/c", async { Ok::<_, ()>(()) }).await.unwrap();
        hooks.finish("a");
        // What is done stays so.
        hooks.add("a");
        assert_eq!(hooks.checks(), [("poststarthook/a".to_owned(), true), ("poststarthook/b/c".to_owned(), true)]);
    }
}
