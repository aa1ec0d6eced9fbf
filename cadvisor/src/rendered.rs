//! Pages that are rendered once for all who ask between two rounds.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::{
    expose::View,
    model::{Snapshot, Storage},
};

/// The newest rendering of one page. Those who ask while it is rendered wait for it instead of rendering it again.
#[derive(Debug, Default)]
pub(crate) struct Rendered(Mutex<Option<Kept>>);

#[derive(Debug)]
struct Kept {
    /// What it was made from; not kept alive by it.
    snapshot: Weak<Snapshot>,
    storage: Weak<Storage>,
    image_bytes: Option<u64>,
    body: Arc<[u8]>,
}

impl Kept {
    fn is_of(&self, view: &View) -> bool {
        std::ptr::eq(self.snapshot.as_ptr(), Arc::as_ptr(&view.snapshot))
            && std::ptr::eq(self.storage.as_ptr(), Arc::as_ptr(&view.storage))
            && self.image_bytes == view.image_bytes
    }
}

impl Rendered {
    pub(crate) fn of(&self, view: &View, render: impl FnOnce(&View) -> Vec<u8>) -> Arc<[u8]> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kept) = kept.as_ref().filter(|kept| kept.is_of(view)) {
            return Arc::clone(&kept.body);
        }
        let body: Arc<[u8]> = render(view).into();
        *kept = Some(Kept {
            snapshot: Arc::downgrade(&view.snapshot),
            storage: Arc::downgrade(&view.storage),
            image_bytes: view.image_bytes,
            body: Arc::clone(&body),
        });
        body
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{expose::tests::view, source::tests::Tree};

    #[test]
    fn a_page_is_rendered_again_when_its_numbers_are_others() {
        let (rendered, mut view) = (Rendered::default(), view(Tree::V2));
        let mut count = 0_u8;
        let mut ask = |view: &View| {
            rendered.of(view, |_| {
                count += 1;
                vec![count]
            })[0]
        };
        assert_eq!((ask(&view), ask(&view.clone())), (1, 1));
        view.snapshot = Arc::new(Snapshot::clone(&view.snapshot));
        assert_eq!((ask(&view), ask(&view)), (2, 2));
        view.storage = Arc::new(Storage::clone(&view.storage));
        assert_eq!(ask(&view), 3);
        view.image_bytes = None;
        assert_eq!((ask(&view), ask(&view)), (4, 4));
    }
}
