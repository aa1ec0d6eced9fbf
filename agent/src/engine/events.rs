//! Docker's event stream: what wakes the pods' workers.

use std::collections::HashMap;

use bollard::query_parameters::EventsOptions;
use futures::{Stream, StreamExt as _};

use super::{Engine, EngineError, names};

/// A container of ours changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Changed {
    pub(crate) id: String,
    pub(crate) pod_uid: String,
    pub(crate) action: Action,
}

/// What happened to it. Others (exec, attach, resize …) change nothing that the agent decides on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    Started,
    Died,
    Destroyed,
}

impl Engine {
    /// Events from now on. The stream ends with an error when the connection breaks: list again then,
    /// since what happened meanwhile may be lost.
    pub(crate) fn events(&self) -> impl Stream<Item = Result<Changed, EngineError>> + Send + use<> {
        let filters = HashMap::from([
            ("type".to_owned(), vec!["container".to_owned()]),
            ("label".to_owned(), vec![names::TYPE.to_owned()]),
            ("event".to_owned(), ["start", "die", "destroy"].map(str::to_owned).to_vec()),
        ]);
        let options = EventsOptions { filters: Some(filters), ..EventsOptions::default() };
        // The stream lives as long as the agent: the client's own limit must not end it.
        self.docker().events(Some(options)).filter_map(|event| async move {
            match event {
                Ok(event) => {
                    let actor = event.actor?;
                    let action = match event.action.as_deref()? {
                        "start" => Action::Started,
                        "die" => Action::Died,
                        "destroy" => Action::Destroyed,
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
