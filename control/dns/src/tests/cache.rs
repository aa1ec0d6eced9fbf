//! For how long answers are kept, and how many.

use std::time::Duration;

use hickory_proto::{
    op::ResponseCode,
    rr::{
        Name, RData, Record,
        rdata::{CNAME, SOA},
    },
};
use proptest::prelude::*;
use tokio::time::Instant;

use super::question;
use crate::{
    answer::Answer,
    cache::{Cache, CacheKey, lifetime},
};

fn address(ttl: u32) -> Record {
    Record::from_rdata(question("www.example.com A").name, ttl, RData::A(std::net::Ipv4Addr::LOCALHOST.into()))
}

fn soa(ttl: u32, minimum: u32) -> Record {
    let name = || Name::from_ascii("example.com.").unwrap();
    Record::from_rdata(name(), ttl, RData::SOA(SOA::new(name(), name(), 1, 1, 1, 1, minimum)))
}

fn alias(ttl: u32) -> Record {
    Record::from_rdata(question("www.example.com A").name, ttl, RData::CNAME(CNAME(Name::root())))
}

fn answer(code: ResponseCode, answers: Vec<Record>, authorities: Vec<Record>) -> Answer {
    Answer { answers, authorities, ..Answer::of_code(code) }
}

fn key(text: &str) -> CacheKey {
    CacheKey::new(&question(text), false, false)
}

#[test]
fn lifetimes() {
    use ResponseCode::{NXDomain, NoError, Refused, ServFail};
    for (answer, expected) in [
        (answer(NoError, vec![address(3600), address(20)], vec![]), Some(20)),
        (answer(NoError, vec![address(3600)], vec![]), Some(30)),
        (answer(NoError, vec![address(0)], vec![]), None),
        (answer(NoError, vec![alias(10), address(20)], vec![]), Some(10)),
        // No data, and no name.
        (answer(NoError, vec![], vec![soa(900, 10)]), Some(10)),
        (answer(NoError, vec![alias(5)], vec![soa(900, 10)]), Some(5)),
        (answer(NXDomain, vec![], vec![soa(7, 10)]), Some(7)),
        (answer(NXDomain, vec![], vec![soa(900, 900)]), Some(30)),
        // Without the record that says how long.
        (answer(NXDomain, vec![], vec![]), None),
        (answer(NoError, vec![], vec![]), None),
        (answer(ServFail, vec![address(20)], vec![soa(900, 10)]), None),
        (answer(Refused, vec![], vec![soa(900, 10)]), None),
    ] {
        assert_eq!(lifetime(&answer), expected, "{answer:?}");
    }
}

#[test]
fn an_answer_ages_and_ends() {
    let (mut cache, now) = (Cache::default(), Instant::now());
    let kept = answer(ResponseCode::NoError, vec![address(300)], vec![soa(900, 10)]);
    cache.put(key("www.example.com A"), &kept, 100, now);
    let ttls = |cache: &Cache, text: &str, seconds: u64| {
        let found = cache.get(&key(text), now + Duration::from_secs(seconds))?;
        Some((found.answers[0].ttl, found.authorities[0].ttl))
    };
    assert_eq!(ttls(&cache, "www.example.com A", 0), Some((30, 30)));
    assert_eq!(ttls(&cache, "WWW.example.COM A", 12), Some((18, 18)), "letters of either case");
    assert_eq!(ttls(&cache, "www.example.com A", 30), None);
    assert_eq!(ttls(&cache, "www.example.com AAAA", 0), None);
    // What wants signatures has its own.
    let signed = CacheKey::new(&question("www.example.com A"), true, false);
    assert_eq!(cache.get(&signed, now), None);
    assert!(cache.is_consistent());
}

proptest! {
    #[test]
    fn it_never_has_more_than_it_may(
        puts in proptest::collection::vec((0..40u32, 1..60u32, 1..2_000_000usize, 0..10u64), 0..120),
    ) {
        let (mut cache, mut now) = (Cache::default(), Instant::now());
        for (name, ttl, bytes, passed) in puts {
            now += Duration::from_secs(passed);
            let key = key(&format!("n{name}.example.com A"));
            cache.put(key.clone(), &answer(ResponseCode::NoError, vec![address(ttl)], vec![]), bytes, now);
            prop_assert!(cache.is_consistent());
            if let Some(found) = cache.get(&key, now) {
                prop_assert_eq!(found.answers[0].ttl, ttl.min(30));
            }
        }
        // All that has ended makes room.
        cache.put(key("last A"), &answer(ResponseCode::NoError, vec![address(1)], vec![]), 1, now + Duration::from_secs(60));
        prop_assert_eq!(cache.len(), 1);
    }
}

#[test]
fn one_that_is_too_large_is_not_kept() {
    let (mut cache, now) = (Cache::default(), Instant::now());
    let kept = answer(ResponseCode::NoError, vec![address(300)], vec![]);
    cache.put(key("large A"), &kept, 100 << 20, now);
    assert!(cache.len() == 0 && cache.is_consistent());
}
