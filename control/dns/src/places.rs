//! A limited number of slots, shared fairly by clients: a client that has fewer of them than are free may take another
//! one. So a single client may use half of them, and there is always one for a newcomer.

use std::{collections::HashMap, net::IpAddr, sync::Arc};

use parking_lot::Mutex;

/// The places that are taken, by the addresses of those who have them.
#[derive(Debug)]
pub(super) struct Places {
    count: usize,
    taken: Mutex<HashMap<IpAddr, usize>>,
}

/// One of the places, until it is dropped.
#[derive(Debug)]
pub(super) struct Place {
    all: Arc<Places>,
    of: IpAddr,
}

impl Places {
    pub(super) fn new(count: usize) -> Arc<Self> {
        Arc::new(Self { count, taken: Mutex::default() })
    }

    /// Takes a slot; `None` if `of` may not have another one.
    pub(super) fn enter(self: &Arc<Self>, of: IpAddr) -> Option<Place> {
        let mut taken = self.taken.lock();
        let own = taken.get(&of).copied().unwrap_or_default();
        if self.count.saturating_sub(taken.values().sum::<usize>()) <= own {
            return None;
        }
        taken.insert(of, own + 1);
        Some(Place { all: Arc::clone(self), of })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.all.taken.lock();
        if let Some(own) = taken.get_mut(&self.of) {
            *own -= 1;
            if *own == 0 {
                taken.remove(&self.of);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_takes_all_places() {
        let places = Places::new(12);
        let enter_all = |of: &str| {
            let of: IpAddr = of.parse().unwrap();
            std::iter::from_fn(|| places.enter(of)).collect::<Vec<_>>()
        };
        let first = enter_all("10.244.0.2");
        assert_eq!(first.len(), 6);
        let second = enter_all("10.244.0.3");
        assert_eq!(second.len(), 3);
        let third = enter_all("10.244.0.4");
        assert_eq!(third.len(), 2);
        // Released slots are available to everyone.
        drop((first, third));
        assert_eq!(enter_all("10.244.0.5").len(), 5);
        drop(second);
        assert_eq!(enter_all("10.244.0.2").len(), 6);
    }
}
