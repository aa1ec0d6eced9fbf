//! Pages that are rendered once for all who ask between two rounds.

use std::{
    sync::{Arc, Mutex, OnceLock, PoisonError, Weak},
    time::Duration,
};

use crate::{expose::View, model::Snapshot};

/// One page, for as many as want it.
#[derive(Debug, Clone)]
pub struct Page(Arc<Content>);

/// Packs a page; nothing when it failed.
type Pack = fn(&[u8]) -> Option<Vec<u8>>;

#[derive(Debug)]
struct Content {
    plain: Vec<u8>,
    packed: OnceLock<(Pack, Option<Vec<u8>>)>,
}

/// The packed form of a page.
#[derive(Debug)]
pub struct Packed(Page);

impl Page {
    /// What `pack` makes of it, which is done once for all who have the page; nothing when it failed.
    pub fn packed(&self, pack: Pack) -> Option<Packed> {
        let (_, packed) = self.0.packed.get_or_init(|| (pack, pack(&self.0.plain)));
        packed.is_some().then(|| Packed(self.clone()))
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
        self.0.0.packed.get().and_then(|(_, packed)| packed.as_deref()).unwrap_or_default()
    }
}

/// What can be given at once.
#[derive(Debug)]
pub struct Ready {
    /// The page, of the newest round or of one before.
    pub page: Page,
    /// There is a newer round: the one who was told so is to have its page made. Of those who ask meanwhile nobody is.
    pub due: bool,
}

/// The newest rendering of one page. Those who need the newest while it is rendered wait for it instead of rendering it
/// again.
#[derive(Debug, Default)]
pub(crate) struct Rendered {
    newest: Mutex<Option<Newest>>,
    /// Held by the one who renders.
    making: Mutex<()>,
    /// The page is too large to lie about when nobody reads it.
    only_while_read: bool,
    /// The page before may be given until a newer one is made, if its numbers are older by this at most.
    last_for: Duration,
}

#[derive(Debug)]
struct Newest {
    /// What it was made from; not kept alive by it.
    snapshot: Weak<Snapshot>,
    image_bytes: Option<u64>,
    at: jiff::Timestamp,
    page: Held,
    /// The round whose page somebody was told to have made.
    next: Weak<Snapshot>,
}

#[derive(Debug)]
enum Held {
    Kept(Page),
    WhileRead(Weak<Content>),
}

impl Newest {
    /// The page, if it is still there and is of the round of `view`. Sizes on disk are those of when it was made: they carry
    /// a time of their own, and one or the other changes each second.
    fn of(&self, view: &View) -> Option<Page> {
        let same =
            std::ptr::eq(self.snapshot.as_ptr(), Arc::as_ptr(&view.snapshot)) && self.image_bytes == view.image_bytes;
        self.page.get().filter(|_| same)
    }
}

impl Held {
    fn get(&self) -> Option<Page> {
        match self {
            Self::Kept(page) => Some(page.clone()),
            Self::WhileRead(page) => page.upgrade().map(Page),
        }
    }
}

impl Rendered {
    /// For a page that is kept only as long as somebody reads it.
    pub(crate) fn only_while_read() -> Self {
        Self { only_while_read: true, ..Self::default() }
    }

    /// For a page that nobody waits for if there is one whose numbers are older by `most` at most.
    pub(crate) fn or_the_last_for(most: Duration) -> Self {
        Self { last_for: most, ..Self::default() }
    }

    /// What can be given at once, if anything.
    pub(crate) fn ready(&self, view: &View) -> Option<Ready> {
        let mut newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        let newest = newest.as_mut()?;
        if let Some(page) = newest.of(view) {
            return Some(Ready { page, due: false });
        }
        let is_near = view.snapshot.at.duration_since(newest.at).unsigned_abs() <= self.last_for;
        let page = newest.page.get().filter(|_| is_near)?;
        // Each round once: what was not made then is made for the next.
        let due = !std::ptr::eq(newest.next.as_ptr(), Arc::as_ptr(&view.snapshot));
        newest.next = Arc::downgrade(&view.snapshot);
        Some(Ready { page, due })
    }

    /// The page, which may have to be made first.
    pub(crate) fn of(&self, view: &View, render: impl FnOnce(&View) -> Vec<u8>) -> Page {
        if let Some(page) = self.known(|newest| newest.of(view)) {
            return page;
        }
        let _making = self.making.lock().unwrap_or_else(PoisonError::into_inner);
        // Made meanwhile.
        if let Some(page) = self.known(|newest| newest.of(view)) {
            return page;
        }
        let page = Page::from(render(view));
        // Those who will ask want it as those before them did: they need not wait for each other then.
        let pack = self.known(|newest| newest.page.get()).and_then(|last| last.0.packed.get().map(|(pack, _)| *pack));
        if let Some(pack) = pack {
            page.packed(pack);
        }
        let newest = Newest {
            snapshot: Arc::downgrade(&view.snapshot),
            image_bytes: view.image_bytes,
            at: view.snapshot.at,
            page: if self.only_while_read {
                Held::WhileRead(Arc::downgrade(&page.0))
            } else {
                Held::Kept(page.clone())
            },
            next: Weak::new(),
        };
        *self.newest.lock().unwrap_or_else(PoisonError::into_inner) = Some(newest);
        page
    }

    fn known(&self, of: impl FnOnce(&Newest) -> Option<Page>) -> Option<Page> {
        self.newest.lock().unwrap_or_else(PoisonError::into_inner).as_ref().and_then(of)
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
        view.image_bytes = None;
        assert_eq!((ask(&view), ask(&view)), (3, 3));
    }

    fn later(old: &View, seconds: i64) -> View {
        let mut snapshot = Snapshot::clone(&old.snapshot);
        snapshot.at += jiff::SignedDuration::from_secs(seconds);
        View { snapshot: Arc::new(snapshot), ..old.clone() }
    }

    #[test]
    fn nobody_waits_for_a_new_page_while_the_one_before_is_not_too_old() {
        let rendered = Rendered::or_the_last_for(Duration::from_secs(60));
        let ready = |view: &View| rendered.ready(view).map(|ready| (ready.page.as_ref()[0], ready.due));
        let first = view(Tree::V2);
        assert_eq!(ready(&first), None);
        rendered.of(&first, |_| vec![1]);
        assert_eq!(ready(&first), Some((1, false)));
        let second = later(&first, 60);
        assert_eq!([ready(&second), ready(&second)], [Some((1, true)), Some((1, false))], "one is told to make it");
        // It came to nothing; in the next round it does not.
        let third = later(&first, 50);
        assert_eq!(ready(&third), Some((1, true)));
        let made = rendered.of(&third, |view| {
            assert_eq!(ready(view), Some((1, false)), "while it is made");
            vec![2]
        });
        assert_eq!((made.as_ref(), ready(&third)), (&[2][..], Some((2, false))));
        assert_eq!(ready(&later(&third, 61)), None, "a minute later nobody is given it any more");
        assert_eq!(ready(&later(&third, -61)), None, "nor when the clock was set back");
    }

    #[test]
    fn who_needs_the_newest_waits_while_another_makes_it() {
        let (rendered, view) = (Rendered::default(), view(Tree::V2));
        rendered.of(&view, |_| vec![3]);
        let next = later(&view, 10);
        assert!(rendered.ready(&next).is_none());
        std::thread::scope(|scope| {
            let (began, begun) = std::sync::mpsc::channel();
            let (rendered, next) = (&rendered, &next);
            let waits = scope.spawn(move || {
                begun.recv().unwrap();
                rendered.of(next, |_| panic!("rendered twice")).as_ref().to_vec()
            });
            let made = rendered.of(next, |_| {
                began.send(()).unwrap();
                std::thread::sleep(Duration::from_millis(50));
                vec![4]
            });
            assert_eq!((made.as_ref(), waits.join().unwrap()), (&[4][..], vec![4]));
        });
    }

    #[test]
    fn a_page_is_packed_before_it_is_given_if_the_one_before_was_asked_for_packed() {
        let (rendered, mut view) = (Rendered::default(), view(Tree::V2));
        let pack = |plain: &[u8]| Some(vec![plain[0] + 100]);
        let first = rendered.of(&view, |_| vec![1]);
        assert!(first.0.packed.get().is_none());
        first.packed(pack);
        view.image_bytes = None;
        let second = rendered.of(&view, |_| vec![2]);
        assert_eq!(second.packed(|_| panic!("packed late")).unwrap().as_ref(), [102]);
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
