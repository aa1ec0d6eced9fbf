//! Pages that are rendered once for all clients between two housekeepings.

use std::{
    sync::{Arc, OnceLock, Weak},
    time::Duration,
};

use parking_lot::Mutex;
use windlass_kit::moment::Moment;

use crate::{expose::View, model::Snapshot};

/// A rendered page, shared by its readers.
#[derive(Debug, Clone)]
pub struct Page(Arc<Content>);

/// Compresses a page; `None` when that failed.
type Pack = fn(&[u8]) -> Option<Vec<u8>>;

#[derive(Debug)]
struct Content {
    plain: Vec<u8>,
    packed: OnceLock<(Pack, Option<Vec<u8>>)>,
}

/// The compressed form of a page.
#[derive(Debug)]
pub struct Packed(Page);

impl Page {
    /// The page compressed by `pack`, which runs once for all readers; `None` when it failed.
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

/// A page that is available without rendering.
#[derive(Debug)]
pub struct CachedPage {
    /// The page, of the newest snapshot or of an earlier one.
    pub page: Page,
    /// There is a newer snapshot, and this caller should have its page rendered. Only one caller gets this.
    pub needs_refresh: bool,
}

/// The newest rendering of one page. Callers that need the newest wait while it is rendered, instead of rendering it
/// again.
#[derive(Debug, Default)]
pub(crate) struct PageCache {
    newest: Mutex<Option<CachedRendering>>,
    /// Locked while a caller renders.
    rendering: Mutex<()>,
    /// The page is too large to be cached without readers.
    weak: bool,
    /// An older page is still served if its numbers are older by at most this.
    max_staleness: Duration,
}

#[derive(Debug)]
struct CachedRendering {
    /// What it was rendered from, without keeping it alive.
    snapshot: Weak<Snapshot>,
    image_bytes: Option<u64>,
    moment: Moment,
    page: Slot,
    /// The snapshot whose page a caller was assigned to render.
    next: Weak<Snapshot>,
}

#[derive(Debug)]
enum Slot {
    Strong(Page),
    Weak(Weak<Content>),
}

impl CachedRendering {
    /// The page, if it still exists and is of the snapshot of `view`. Its disk usage may be older than that of `view`,
    /// which has a separate timestamp and changes every second.
    fn of(&self, view: &View) -> Option<Page> {
        let same =
            std::ptr::eq(self.snapshot.as_ptr(), Arc::as_ptr(&view.snapshot)) && self.image_bytes == view.image_bytes;
        self.page.get().filter(|_| same)
    }
}

impl Slot {
    fn get(&self) -> Option<Page> {
        match self {
            Self::Strong(page) => Some(page.clone()),
            Self::Weak(page) => page.upgrade().map(Page),
        }
    }
}

impl PageCache {
    /// For a page that is cached only while a client reads it.
    pub(crate) fn weak() -> Self {
        Self { weak: true, ..Self::default() }
    }

    /// For a page that is served without waiting if there is one whose numbers are older by `most` at most.
    pub(crate) fn with_max_staleness(most: Duration) -> Self {
        Self { max_staleness: most, ..Self::default() }
    }

    /// The page that is available without rendering, if any.
    pub(crate) fn cached(&self, view: &View) -> Option<CachedPage> {
        let mut newest = self.newest.lock();
        let newest = newest.as_mut()?;
        if let Some(page) = newest.of(view) {
            return Some(CachedPage { page, needs_refresh: false });
        }
        let is_near = view.snapshot.moment.since(&newest.moment) <= self.max_staleness;
        let page = newest.page.get().filter(|_| is_near)?;
        // Once for each snapshot: a rendering that failed is retried with the next.
        let needs_refresh = !std::ptr::eq(newest.next.as_ptr(), Arc::as_ptr(&view.snapshot));
        newest.next = Arc::downgrade(&view.snapshot);
        Some(CachedPage { page, needs_refresh })
    }

    /// The page of `view`, rendered unless it is cached.
    pub(crate) fn of(&self, view: &View, render: impl FnOnce(&View) -> Vec<u8>) -> Page {
        if let Some(page) = self.known(|newest| newest.of(view)) {
            return page;
        }
        let _making = self.rendering.lock();
        // Another caller rendered it meanwhile.
        if let Some(page) = self.known(|newest| newest.of(view)) {
            return page;
        }
        let page = Page::from(render(view));
        // The next readers want it compressed as those before did, and do not wait for each other then.
        let pack = self.known(|newest| newest.page.get()).and_then(|last| last.0.packed.get().map(|(pack, _)| *pack));
        if let Some(pack) = pack {
            page.packed(pack);
        }
        let newest = CachedRendering {
            snapshot: Arc::downgrade(&view.snapshot),
            image_bytes: view.image_bytes,
            moment: view.snapshot.moment,
            page: if self.weak { Slot::Weak(Arc::downgrade(&page.0)) } else { Slot::Strong(page.clone()) },
            next: Weak::new(),
        };
        *self.newest.lock() = Some(newest);
        page
    }

    fn known(&self, of: impl FnOnce(&CachedRendering) -> Option<Page>) -> Option<Page> {
        self.newest.lock().as_ref().and_then(of)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{expose::tests::view, source::tests::Tree};

    #[test]
    fn a_page_is_rendered_again_when_its_numbers_are_others() {
        let (cache, mut view) = (PageCache::default(), view(Tree::V2));
        let mut count = 0_u8;
        let mut first_byte = |view: &View| {
            cache
                .of(view, |_| {
                    count += 1;
                    vec![count]
                })
                .as_ref()[0]
        };
        assert_eq!((first_byte(&view), first_byte(&view.clone())), (1, 1));
        view.snapshot = Arc::new(Snapshot::clone(&view.snapshot));
        assert_eq!((first_byte(&view), first_byte(&view)), (2, 2));
        view.image_bytes = None;
        assert_eq!((first_byte(&view), first_byte(&view)), (3, 3));
    }

    fn later(old: &View, seconds: u64) -> View {
        let mut snapshot = Snapshot::clone(&old.snapshot);
        snapshot.moment.mono_ns += seconds * 1_000_000_000;
        View { snapshot: Arc::new(snapshot), ..old.clone() }
    }

    #[test]
    fn nobody_waits_for_a_new_page_while_the_one_before_is_not_too_old() {
        let cache = PageCache::with_max_staleness(Duration::from_secs(60));
        let ready = |view: &View| cache.cached(view).map(|ready| (ready.page.as_ref()[0], ready.needs_refresh));
        let first = view(Tree::V2);
        assert_eq!(ready(&first), None);
        cache.of(&first, |_| vec![1]);
        assert_eq!(ready(&first), Some((1, false)));
        let second = later(&first, 60);
        assert_eq!([ready(&second), ready(&second)], [Some((1, true)), Some((1, false))], "one is told to make it");
        // The rendering failed; with the next snapshot it is retried.
        let third = later(&first, 50);
        assert_eq!(ready(&third), Some((1, true)));
        let made = cache.of(&third, |view| {
            assert_eq!(ready(view), Some((1, false)), "while it is made");
            vec![2]
        });
        assert_eq!((made.as_ref(), ready(&third)), (&[2][..], Some((2, false))));
        assert_eq!(ready(&later(&third, 61)), None, "a minute later nobody is given it any more");
        let mut set_back = Snapshot::clone(&third.snapshot);
        set_back.moment.wall -= jiff::SignedDuration::from_hours(5);
        let set_back = View { snapshot: Arc::new(set_back), ..third };
        assert_eq!(ready(&set_back), Some((2, true)), "a clock that is set makes nothing older");
    }

    #[test]
    fn who_needs_the_newest_waits_while_another_makes_it() {
        let (cache, view) = (PageCache::default(), view(Tree::V2));
        cache.of(&view, |_| vec![3]);
        let next = later(&view, 10);
        assert!(cache.cached(&next).is_none());
        std::thread::scope(|scope| {
            let (began, begun) = std::sync::mpsc::channel();
            let (cache, next) = (&cache, &next);
            let waits = scope.spawn(move || {
                begun.recv().unwrap();
                cache.of(next, |_| panic!("rendered twice")).as_ref().to_vec()
            });
            let made = cache.of(next, |_| {
                began.send(()).unwrap();
                std::thread::sleep(Duration::from_millis(50));
                vec![4]
            });
            assert_eq!((made.as_ref(), waits.join().unwrap()), (&[4][..], vec![4]));
        });
    }

    #[test]
    fn a_page_is_compressed_ahead_if_the_last_was() {
        let (cache, mut view) = (PageCache::default(), view(Tree::V2));
        let pack = |plain: &[u8]| Some(vec![plain[0] + 100]);
        let first = cache.of(&view, |_| vec![1]);
        assert!(first.0.packed.get().is_none());
        first.packed(pack);
        view.image_bytes = None;
        let second = cache.of(&view, |_| vec![2]);
        assert_eq!(second.packed(|_| panic!("packed late")).unwrap().as_ref(), [102]);
    }

    #[test]
    fn a_large_page_goes_when_nobody_reads_it() {
        let (cache, view) = (PageCache::weak(), view(Tree::V2));
        let first = cache.of(&view, |_| vec![1]);
        let second = cache.of(&view, |_| vec![2]);
        assert_eq!((first.as_ref(), second.as_ref()), (&[1][..], &[1][..]));
        drop((first, second));
        assert_eq!(cache.of(&view, |_| vec![3]).as_ref(), [3]);
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
