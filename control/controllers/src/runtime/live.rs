//! What the API itself has answered just now, as opposed to what a cache shows. A step that destroys something takes a
//! [`Proof`], and there is no other way to a proof than such an answer: a step that was decided on a cache does not compile.

use std::fmt::Debug;

use kube::{Api, Resource, api::ListParams};
use serde::de::DeserializeOwned;

/// Objects in one page of a list.
const PAGE: u32 = 500;

/// An answer of the API.
#[derive(Debug)]
pub(crate) struct Live<T>(T);

/// That the API has shown what a step depends on.
#[derive(Debug)]
pub(crate) struct Proof(());

impl<K: Clone + DeserializeOwned + Debug> Live<Option<K>> {
    /// Asks for one object.
    ///
    /// # Errors
    /// When the API gives no answer; that there is no such object is one.
    pub(crate) async fn get(api: &Api<K>, name: &str) -> Result<Self, kube::Error> {
        api.get_opt(name).await.map(Self)
    }
}

impl<K: Clone + DeserializeOwned + Debug> Live<Vec<K>> {
    /// Asks for all objects of an API, page by page.
    ///
    /// # Errors
    /// When a page does not come: then nothing is known.
    pub(crate) async fn list(api: &Api<K>) -> Result<Self, kube::Error>
    where
        K: Resource,
    {
        let (mut all, mut params) = (Vec::new(), ListParams::default().limit(PAGE));
        loop {
            let page = api.list(&params).await?;
            all.extend(page.items);
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => params = params.continue_token(&token),
                None => return Ok(Self(all)),
            }
        }
    }
}

impl<T> Live<T> {
    /// The answer.
    pub(crate) fn answer(&self) -> &T {
        &self.0
    }

    /// A proof, if the answer says so.
    pub(crate) fn shows(&self, what: impl FnOnce(&T) -> bool) -> Option<Proof> {
        what(&self.0).then_some(Proof(()))
    }
}
