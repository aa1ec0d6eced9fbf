//! Limits of requests in flight. Components of this process and nodes have shares of their own, so that controllers,
//! scheduler and heartbeats continue whatever other clients do.

use std::{
    collections::{HashMap, hash_map::Entry},
    time::Duration,
};

use axum::http::Method;
use parking_lot::Mutex;
use tokio::sync::{Semaphore, SemaphorePermit};
use windlass_kit::prometheus::{Kind, Text};

use crate::apiserver::request::user::Credentials;
use crate::apiserver::request::{
    error::ApiError,
    user::{NODES_GROUP, User},
};

/// Upstream's limits (`--max-requests-inflight`, `--max-mutating-requests-inflight`).
const MAX_REQUESTS_IN_FLIGHT: usize = 400;
pub(in crate::apiserver) const MAX_MUTATING_REQUESTS_IN_FLIGHT: usize = 200;
/// Limits of components of this process, and of nodes.
const MAX_SYSTEM_REQUESTS_IN_FLIGHT: usize = 200;
const MAX_SYSTEM_MUTATING_REQUESTS_IN_FLIGHT: usize = 100;
/// How long a component of this process waits for its place. That of upstream's requests to the API, so that one which waits
/// for another of this process does not do so for ever.
const PATIENCE: Duration = Duration::from_secs(60);
/// Limit of requests that are passed on to extension API servers: one that hangs holds up no others.
const MAX_EXTENSION_REQUESTS_IN_FLIGHT: usize = 200;
/// Limit of requests to resources that every authenticated caller may write, such as reviews.
const MAX_REVIEWS_IN_FLIGHT: usize = 64;
/// How many of them one user may have, of which the bodies may still come.
pub(in crate::apiserver) const MAX_REVIEWS_OF_USER: usize = 16;

/// Limits of one class of callers.
#[derive(Debug)]
pub(in crate::apiserver) struct InFlight {
    pub(in crate::apiserver) reads: Semaphore,
    pub(in crate::apiserver) writes: Semaphore,
}

impl InFlight {
    fn new(reads: usize, writes: usize) -> Self {
        Self { reads: Semaphore::new(reads), writes: Semaphore::new(writes) }
    }
}

/// The limits of all classes.
#[derive(Debug)]
pub(in crate::apiserver) struct Limits {
    pub(in crate::apiserver) shared: InFlight,
    /// Of components of this process.
    in_process: InFlight,
    nodes: InFlight,
    extensions: Semaphore,
    reviews: Semaphore,
    /// How many reviews each user has.
    reviewers: Mutex<HashMap<String, usize>>,
}

/// The place of a review among those of its user.
#[derive(Debug)]
pub(in crate::apiserver) struct Reviewing<'a> {
    limits: &'a Limits,
    user: String,
}

impl Drop for Reviewing<'_> {
    fn drop(&mut self) {
        let mut all = self.limits.reviewers.lock();
        if let Entry::Occupied(mut number) = all.entry(std::mem::take(&mut self.user)) {
            *number.get_mut() -= 1;
            if *number.get() == 0 {
                number.remove();
            }
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            shared: InFlight::new(MAX_REQUESTS_IN_FLIGHT, MAX_MUTATING_REQUESTS_IN_FLIGHT),
            in_process: InFlight::new(MAX_SYSTEM_REQUESTS_IN_FLIGHT, MAX_SYSTEM_MUTATING_REQUESTS_IN_FLIGHT),
            nodes: InFlight::new(MAX_SYSTEM_REQUESTS_IN_FLIGHT, MAX_SYSTEM_MUTATING_REQUESTS_IN_FLIGHT),
            extensions: Semaphore::new(MAX_EXTENSION_REQUESTS_IN_FLIGHT),
            reviews: Semaphore::new(MAX_REVIEWS_IN_FLIGHT),
            reviewers: Mutex::default(),
        }
    }
}

/// The class of a caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::apiserver) enum Class {
    /// A component of this process.
    InProcess,
    Node,
    /// Everybody else.
    Shared,
}

impl Class {
    /// The class of a request; taken from its own credentials, whomever it impersonates.
    pub(in crate::apiserver) fn of(user: &User, credentials: Credentials) -> Self {
        match credentials {
            Credentials::InProcess => Self::InProcess,
            _ if user.is_in(NODES_GROUP) => Self::Node,
            _ => Self::Shared,
        }
    }
}

impl Limits {
    /// The requests in flight: those that read, and those that write.
    pub(in crate::apiserver) fn in_flight(&self) -> (usize, usize) {
        let free = |which: fn(&InFlight) -> &Semaphore| -> usize {
            [&self.shared, &self.in_process, &self.nodes].map(|class| which(class).available_permits()).iter().sum()
        };
        let reads = MAX_REQUESTS_IN_FLIGHT + 2 * MAX_SYSTEM_REQUESTS_IN_FLIGHT;
        let writes = MAX_MUTATING_REQUESTS_IN_FLIGHT + 2 * MAX_SYSTEM_MUTATING_REQUESTS_IN_FLIGHT;
        (reads.saturating_sub(free(|class| &class.reads)), writes.saturating_sub(free(|class| &class.writes)))
    }

    /// Writes how many requests are in flight.
    pub(in crate::apiserver) fn write(&self, page: &mut Text) {
        const NAME: &str = "apiserver_current_inflight_requests";
        page.family(NAME, "Requests that are answered now and do not last, by whether they write.", Kind::Gauge);
        let (reads, writes) = self.in_flight();
        for (kind, count) in [("mutating", writes), ("readOnly", reads)] {
            page.sample(NAME, &[("request_kind", kind)], f64::from(u32::try_from(count).unwrap_or(u32::MAX)));
        }
    }

    /// A place among the requests in flight. A component of this process waits for one: it has nothing better to do, and
    /// what it is refused would be shown to users.
    ///
    /// # Errors
    /// When there are too many.
    pub(in crate::apiserver) async fn acquire(
        &self,
        class: Class,
        method: &Method,
    ) -> Result<SemaphorePermit<'_>, ApiError> {
        let all = match class {
            Class::InProcess => &self.in_process,
            Class::Node => &self.nodes,
            Class::Shared => &self.shared,
        };
        let limit = if method == Method::GET { &all.reads } else { &all.writes };
        let place = match class {
            Class::InProcess => tokio::time::timeout(PATIENCE, limit.acquire()).await.ok().and_then(Result::ok),
            Class::Node | Class::Shared => limit.try_acquire().ok(),
        };
        place.ok_or_else(ApiError::too_many_requests)
    }

    /// A place among the requests that are passed on to extension API servers.
    ///
    /// # Errors
    /// When there are too many.
    pub(in crate::apiserver) fn acquire_extension(&self) -> Result<SemaphorePermit<'_>, ApiError> {
        self.extensions.try_acquire().map_err(|_| ApiError::too_many_requests())
    }

    /// A place among the reviews of the user, from before the body is read. Components of this process, nodes and
    /// administrators are not limited: other requests depend on their reviews.
    ///
    /// # Errors
    /// When the user has too many.
    pub(in crate::apiserver) fn begin_review(
        &self,
        class: Class,
        user: &User,
    ) -> Result<Option<Reviewing<'_>>, ApiError> {
        if class != Class::Shared || user.is_in(windlass_identity::pki::MASTERS_GROUP) {
            return Ok(None);
        }
        let mut all = self.reviewers.lock();
        let number = all.entry(user.name.clone()).or_default();
        if *number >= MAX_REVIEWS_OF_USER {
            return Err(ApiError::too_many_requests());
        }
        *number += 1;
        drop(all);
        Ok(Some(Reviewing { limits: self, user: user.name.clone() }))
    }

    /// A slot among all reviews, for one whose body has been read.
    ///
    /// # Errors
    /// When there are too many.
    pub(in crate::apiserver) fn acquire_review(
        &self,
        of_user: Option<&Reviewing<'_>>,
    ) -> Result<Option<SemaphorePermit<'_>>, ApiError> {
        if of_user.is_none() {
            return Ok(None);
        }
        self.reviews.try_acquire().map(Some).map_err(|_| ApiError::too_many_requests())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_extension_that_hangs_takes_no_place_of_others() {
        let limits = Limits::default();
        let mut held = Vec::new();
        while let Ok(place) = limits.acquire_extension() {
            held.push(place);
        }
        assert_eq!(held.len(), MAX_EXTENSION_REQUESTS_IN_FLIGHT);
        for class in [Class::InProcess, Class::Node, Class::Shared] {
            assert!(limits.acquire(class, &Method::GET).await.is_ok(), "{class:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn components_of_this_process_wait_and_take_no_place_of_a_node() {
        let limits = Limits::default();
        let mut held = Vec::new();
        for _ in 0..MAX_SYSTEM_MUTATING_REQUESTS_IN_FLIGHT {
            held.push(limits.acquire(Class::InProcess, &Method::POST).await.unwrap());
        }
        assert!(limits.acquire(Class::Node, &Method::PATCH).await.is_ok());
        let (next, ()) = tokio::join!(limits.acquire(Class::InProcess, &Method::POST), async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            held.pop();
        });
        held.push(next.unwrap());
        assert!(limits.acquire(Class::InProcess, &Method::POST).await.is_err(), "it does not wait for ever");
    }
}
