//! What upstream's own tests have collected of images.

use jiff::SignedDuration;
use serde_json::Value;
use windlass_fixtures::facts::{json_of, rows, text_of, value_of};

use super::*;

static TABLE: &str = include_str!("../../../../facts/image_gc.tsv");

/// Seconds since the beginning of a test, as far as times go here.
fn at(seconds: &Value) -> Timestamp {
    let since = SignedDuration::try_from_secs_f64(seconds.as_f64().unwrap()).unwrap_or(SignedDuration::MAX);
    Timestamp::from_second(1_700_000_000).unwrap().checked_add(since).unwrap_or(Timestamp::MAX)
}

fn texts(list: &Value) -> BTreeSet<String> {
    list.as_array().unwrap().iter().map(|text| text.as_str().unwrap().to_owned()).collect()
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap()
}

/// A node's images, as the steps of a test go on.
#[derive(Default)]
struct Node {
    stored: Vec<ImageSummary>,
    /// Those in use, and those that are pinned.
    kept: BTreeSet<String>,
    records: ImageRecords,
    /// In seconds.
    least_age: u64,
    most_age: u64,
}

impl Node {
    /// What is in the store now, and what containers use of it.
    fn see(&mut self, images: &Value, used: &Value, now: Timestamp) {
        let of = |image: &Value| ImageSummary {
            id: image[0].as_str().unwrap().to_owned(),
            tags: Vec::new(),
            digests: Vec::new(),
            size: image[1].as_i64().unwrap(),
        };
        let all = images.as_array().unwrap();
        self.stored = all.iter().map(of).collect();
        let used = texts(used);
        update_records(&mut self.records, &self.stored, &used, now);
        let pinned = all.iter().filter(|image| image[2] == true).map(|image| image[0].as_str().unwrap().to_owned());
        self.kept = used.into_iter().chain(pinned).collect();
    }

    /// The bytes of the images removed to free `wanted`, and how many images are left.
    fn free(&self, wanted: u64, now: Timestamp) -> (u64, usize) {
        let (mut freed, mut removed) = (0, 0);
        let least = Duration::from_secs(self.least_age);
        for image in unused_images(&self.records, &self.stored, &self.kept, least, now) {
            freed += u64::try_from(image.size).unwrap();
            removed += 1;
            if freed >= wanted {
                break;
            }
        }
        (freed, self.stored.len() - removed)
    }

    fn detect(&self, known: &Value, name: &str) {
        if let Some(count) = known["known"].as_u64() {
            assert_eq!(self.records.len() as u64, count, "{name}");
        }
        let was_used = |id: &String| self.records[id].last_used.is_some();
        assert!(texts(&known["used"]).iter().all(was_used), "{name}: {:?}", self.records);
        assert!(!texts(&known["unused"]).iter().any(was_used), "{name}: {:?}", self.records);
    }

    /// The number of images left after those unused for too long are removed.
    fn without_old(&mut self, since: &Value, used: &Value, now: Timestamp) -> usize {
        let up_for = Duration::try_from(now.duration_since(at(since))).unwrap();
        let most = Duration::from_secs(self.most_age);
        let mut old = 0;
        for one in used.as_array().unwrap() {
            let id = one[0].as_str().unwrap();
            self.records.get_mut(id).unwrap().last_used = one[1].as_f64().map(|_| at(&one[1]));
            let image = self.stored.iter().find(|image| image.id == id).unwrap();
            old += usize::from(exceeds_max_age(&self.records, image, most, up_for, now));
        }
        self.stored.len() - old
    }

    /// Whether enough is freed, and the event emitted if not.
    fn collect(&mut self, step: &Value, percent: [u8; 2]) -> (&'static str, Option<String>) {
        let now = at(&Value::from(0));
        self.see(&step[1], &Value::Array(Vec::new()), now);
        let (capacity, available) = (number(&step[2]), number(&step[3]));
        let Some(wanted) = bytes_to_free(capacity, available, percent[0], percent[1]) else { return ("enough", None) };
        let (freed, _) = self.free(wanted, now);
        if freed >= wanted {
            return ("enough", None);
        }
        ("not enough", Some(format!("Warning FreeDiskSpaceFailed {}", insufficient(capacity, available, freed))))
    }
}

fn holds(row: &[&str]) {
    let [name, policy, steps, event] = *row else { panic!("{row:?}") };
    let [high, low, least_age, most_age]: [u64; 4] = value_of(policy);
    let percent = [high, low].map(|percent| u8::try_from(percent).unwrap());
    let mut node = Node { least_age, most_age, ..Node::default() };
    let mut told = None;
    for step in json_of(steps).as_array().unwrap() {
        if step[0] == "collect" {
            // Where the space is not known nothing is decided.
            if !step[2].is_null() {
                let (verdict, message) = node.collect(step, percent);
                assert_eq!(step[4], verdict, "{name}");
                told = message;
            }
            continue;
        }
        let now = at(&step[1]);
        if step[0] != "old" {
            node.see(&step[2], &step[3], now);
        }
        match step[0].as_str().unwrap() {
            "detect" => node.detect(&step[4], name),
            "free" => {
                let (freed, left) = node.free(number(&step[4]), now);
                assert_eq!((freed, left as u64), (number(&step[5]), number(&step[6])), "{name} {step}");
            }
            "unused" => assert_eq!(node.free(u64::MAX, now).1 as u64, number(&step[4]), "{name} {step}"),
            _ => assert_eq!(node.without_old(&step[2], &step[3], now) as u64, number(&step[4]), "{name} {step}"),
        }
    }
    if event != "null" {
        assert_eq!(told, Some(text_of(event)), "{name}");
    }
}

#[test]
fn as_upstreams_tests_say() {
    let seen = rows(TABLE).inspect(|row| holds(row)).count();
    assert!(seen >= 20, "{seen}");
}
