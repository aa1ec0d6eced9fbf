//! Docker's event stream, which wakes the workers of pods.

use std::collections::HashMap;

use bollard::query_parameters::EventsOptions;
use futures::{Stream, StreamExt as _};
use jiff::Timestamp;

use super::{Engine, EngineError, docker_api::EVENTS, names};

/// An event of a container with labels of ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Changed {
    pub(crate) id: String,
    pub(crate) pod_uid: String,
    pub(crate) action: EventAction,
}

/// What happened to the container. Other events (exec, attach, resize …) change nothing that the agent decides on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EventAction {
    Started,
    Died,
    Destroyed,
    /// The kernel has killed one of its processes for want of memory. Under load this event follows `Died`, and
    /// Docker's later answers then deny the OOM kill.
    OutOfMemory,
}

/// Image events that add or remove images or names. With the containerd image store, engines before 28 send no `tag`
/// event when an image is added.
const IMAGE_EVENTS: [&str; 6] = ["tag", "untag", "delete", "pull", "load", "import"];

/// The current time in the form of Docker's `since`: seconds and nanoseconds. Docker reads the same clock.
pub(super) fn now() -> String {
    let now = Timestamp::now();
    format!("{}.{:09}", now.as_second(), now.subsec_nanosecond())
}

impl Engine {
    /// Events from the time of this call on. Docker is only asked once the stream is polled; `since` has it replay what
    /// happened before that, from its last 256 events. The stream ends with an error when the connection breaks: events
    /// may be lost then, so callers list containers again.
    pub(crate) fn events(&self) -> impl Stream<Item = Result<Changed, EngineError>> + Send + use<> {
        let filters = HashMap::from([
            ("type".to_owned(), vec!["container".to_owned()]),
            ("label".to_owned(), vec![names::TYPE.to_owned()]),
            ("event".to_owned(), ["start", "die", "destroy", "oom"].map(str::to_owned).to_vec()),
        ]);
        let options = EventsOptions { filters: Some(filters), since: Some(now()), ..EventsOptions::default() };
        // The stream lives as long as the agent: the time limit is that of its beginning.
        self.patient(EVENTS.limit).events(Some(options)).filter_map(|event| async move {
            match event {
                Ok(event) => {
                    let actor = event.actor?;
                    let action = match event.action.as_deref()? {
                        "start" => EventAction::Started,
                        "die" => EventAction::Died,
                        "destroy" => EventAction::Destroyed,
                        "oom" => EventAction::OutOfMemory,
                        _ => return None,
                    };
                    let pod_uid = actor.attributes?.get(names::POD_UID)?.clone();
                    Some(Ok(Changed { id: actor.id?, pod_uid, action }))
                }
                Err(error) => Some(Err(EngineError::new("Docker's events could not be followed", &error))),
            }
        })
    }
}

impl Engine {
    /// An item whenever an image is given a name, loses one, or is removed, from the time of this call on; as
    /// [`Engine::events`].
    pub(crate) fn image_events(&self) -> impl Stream<Item = Result<(), EngineError>> + Send + use<> {
        let filters = HashMap::from([
            ("type".to_owned(), vec!["image".to_owned()]),
            ("event".to_owned(), IMAGE_EVENTS.map(str::to_owned).to_vec()),
        ]);
        let options = EventsOptions { filters: Some(filters), since: Some(now()), ..EventsOptions::default() };
        self.patient(EVENTS.limit).events(Some(options)).map(|event| match event {
            Ok(_) => Ok(()),
            Err(error) => Err(EngineError::new("Docker's events of images could not be followed", &error)),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{super::fake, *};

    #[tokio::test]
    async fn events_before_the_first_poll_are_replayed() {
        let dir = tempfile::tempdir().unwrap();
        let (engine, mut requests) = fake::recording(dir.path(), "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
        let before = Timestamp::now();
        let mut events = Box::pin(engine.events());
        let called = Timestamp::now();
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert!(requests.try_recv().is_err(), "nothing is asked before the stream is polled");
        assert!(events.next().await.is_none());
        let line = requests.recv().await.unwrap();
        let (_, since) = line.split_once("since=").expect("a time");
        let since = since.split(['&', ' ']).next().unwrap();
        let (seconds, nanoseconds) = since.split_once('.').unwrap();
        let since = Timestamp::new(seconds.parse().unwrap(), nanoseconds.parse().unwrap()).unwrap();
        assert!(before <= since && since <= called, "{before} {since} {called}");
    }
}
