//! Which objects an owner has, adopts and releases. Pure.

use std::sync::Arc;

use kube::Resource;
use windlass_kit::objects::label_selector::Selector;

use crate::pods;

/// An owner that claims objects.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Claimant<'a> {
    pub(crate) uid: &'a str,
    /// Terminating: neither adopts nor releases.
    pub(crate) deleting: bool,
    pub(crate) selector: Selector<'a>,
}

/// The objects of an owner's namespace that concern it.
#[derive(Debug)]
pub(crate) struct Claim<T> {
    /// It controls them, and they match its selector.
    pub(crate) ours: Vec<Arc<T>>,
    /// Matching ones without a controller.
    pub(crate) adopt: Vec<Arc<T>>,
    /// It controls them, but they are not its own any more, mostly since their labels no longer match.
    pub(crate) release: Vec<Arc<T>>,
}

impl<T> Default for Claim<T> {
    fn default() -> Self {
        Self { ours: Vec::new(), adopt: Vec::new(), release: Vec::new() }
    }
}

/// Sorts objects into those that the owner has, those to adopt, if `adoptable`, and those to release.
pub(crate) fn claim<T: Resource>(
    claimant: &Claimant<'_>,
    objects: &[Arc<T>],
    adoptable: impl Fn(&T) -> bool,
) -> Claim<T> {
    claim_members(claimant, objects, |_| true, adoptable)
}

/// The same where labels are not all: only what `belongs` too is the owner's.
pub(crate) fn claim_members<T: Resource>(
    claimant: &Claimant<'_>,
    objects: &[Arc<T>],
    belongs: impl Fn(&T) -> bool,
    adoptable: impl Fn(&T) -> bool,
) -> Claim<T> {
    let mut claim = Claim::default();
    for object in objects {
        let meta = object.meta();
        let matches = claimant.selector.matches(meta.labels.as_ref()) && belongs(object);
        match pods::controller_of(meta) {
            Some(owner) if owner.uid != claimant.uid => {}
            Some(_) if matches => claim.ours.push(Arc::clone(object)),
            Some(_) if claimant.deleting => {}
            Some(_) => claim.release.push(Arc::clone(object)),
            None if matches && !claimant.deleting && adoptable(object) => claim.adopt.push(Arc::clone(object)),
            None => {}
        }
    }
    claim
}
