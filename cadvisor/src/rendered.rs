//! Pages that are rendered once for all who ask between two rounds.

use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use crate::{
    expose::View,
    model::{Snapshot, Storage},
};

/// One page, for as many as want it.
#[derive(Debug, Clone)]
pub struct Page(Arc<Content>);

#[derive(Debug)]
struct Content {
    plain: Vec<u8>,
    packed: OnceLock<Option<Vec<u8>>>,
}

/// The packed form of a page.
#[derive(Debug)]
pub struct Packed(Page);

impl Page {
    /// What `pack` makes of it, which is done once for all who have the page; nothing when it failed.
    pub fn packed(&self, pack: impl FnOnce(&[u8]) -> Option<Vec<u8>>) -> Option<Packed> {
        self.0.packed.get_or_init(|| pack(&self.0.plain)).is_some().then(|| Packed(self.clone()))
    }
}

impl From<Vec<u8>> for Page {
    fn from(plain: Vec<u8>) -> Self {
        Self(Arc::new(Content { plain, packed: OnceLock::new() }))
    }
}

impl From<String> for Page {
    fn from(plain: String) -> Self {
        plain.into_bytes().into()
    }
}

impl AsRef<[u8]> for Page {
    fn as_ref(&self) -> &[u8] {
        &self.0.plain
    }
}

impl AsRef<[u8]> for Packed {
    fn as_ref(&self) -> &[u8] {
        self.0.0.packed.get().and_then(Option::as_deref).unwrap_or_default()
    }
}

/// The newest rendering of one page. Those who ask while it is rendered wait for it instead of rendering it again.
#[derive(Debug, Default)]
pub(crate) struct Rendered {
    newest: Mutex<Option<Newest>>,
    /// The page is too large to lie about when nobody reads it.
    only_while_read: bool,
}

#[derive(Debug)]
struct Newest {
    /// What it was made from; not kept alive by it.
    snapshot: Weak<Snapshot>,
    storage: Weak<Storage>,
    image_bytes: Option<u64>,
    page: Held,
}

#[derive(Debug)]
enum Held {
    Kept(Page),
    WhileRead(Weak<Content>),
}

impl Newest {
    /// The page, if it is still there and has the numbers of `view`.
    fn of(&self, view: &View) -> Option<Page> {
        let same = std::ptr::eq(self.snapshot.as_ptr(), Arc::as_ptr(&view.snapshot))
            && std::ptr::eq(self.storage.as_ptr(), Arc::as_ptr(&view.storage))
            && self.image_bytes == view.image_bytes;
        match &self.page {
            Held::Kept(page) => same.then(|| page.clone()),
            Held::WhileRead(page) => page.upgrade().filter(|_| same).map(Page),
        }
    }
}

impl Rendered {
    /// For a page that is kept only as long as somebody reads it.
    pub(crate) fn only_while_read() -> Self {
        Self { only_while_read: true, ..Self::default() }
    }

    pub(crate) fn of(&self, view: &View, render: impl FnOnce(&View) -> Vec<u8>) -> Page {
        let mut newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(page) = newest.as_ref().and_then(|newest| newest.of(view)) {
            return page;
        }
        let page = Page::from(render(view));
        *newest = Some(Newest {
            snapshot: Arc::downgrade(&view.snapshot),
            storage: Arc::downgrade(&view.storage),
            image_bytes: view.image_bytes,
            page: if self.only_while_read {
                Held::WhileRead(Arc::downgrade(&page.0))
            } else {
                Held::Kept(page.clone())
            },
        });
        page
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
            rendered
                .of(view, |_| {
                    count += 1;
                    vec![count]
                })
                .as_ref()[0]
        };
        assert_eq!((ask(&view), ask(&view.clone())), (1, 1));
        view.snapshot = Arc::new(Snapshot::clone(&view.snapshot));
        assert_eq!((ask(&view), ask(&view)), (2, 2));
        view.storage = Arc::new(Storage::clone(&view.storage));
        assert_eq!(ask(&view), 3);
        view.image_bytes = None;
        assert_eq!((ask(&view), ask(&view)), (4, 4));
    }

    #[test]
    fn a_large_page_goes_when_nobody_reads_it() {
        let (rendered, view) = (Rendered::only_while_read(), view(Tree::V2));
        let first = rendered.of(&view, |_| vec![1]);
        let second = rendered.of(&view, |_| vec![2]);
        assert_eq!((first.as_ref(), second.as_ref()), (&[1][..], &[1][..]));
        drop((first, second));
        assert_eq!(rendered.of(&view, |_| vec![3]).as_ref(), [3]);
    }

    #[test]
    fn a_page_is_packed_once() {
        let page = Page::from(vec![1, 2]);
        let pack = |plain: &[u8]| Some(vec![plain.len() as u8]);
        assert_eq!(page.packed(pack).unwrap().as_ref(), [2]);
        assert_eq!(page.clone().packed(|_| panic!("packed again")).unwrap().as_ref(), [2]);
        assert!(Page::from(Vec::new()).packed(|_| None).is_none());
    }
}
