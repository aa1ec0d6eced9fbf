//! `--runtime-config`: which versions of the API are served. Windlass serves the same ones always, so that the flag is accepted where
//! it asks for what is so. Pure.

/// What is asked for with an item of the flag, such as `batch/v1=true`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Item {
    key: String,
    is_on: bool,
}

/// Reads the flag's values.
///
/// # Errors
/// In upstream's words.
pub(super) fn read(items: &[&str]) -> Result<Vec<Item>, String> {
    let read = |item: &&str| {
        let (key, value) = item.split_once('=').unwrap_or((item, ""));
        let is_on = match value {
            "" | "true" => true,
            "false" => false,
            other => return Err(format!("runtime-config invalid value {key}={other}")),
        };
        Ok(Item { key: key.trim().to_owned(), is_on })
    };
    items.iter().map(read).collect()
}

/// Says why the items are not as it is.
///
/// # Errors
/// For the first one that is not.
pub(super) fn check(items: &[Item], is_served: impl Fn(&str, &str) -> bool) -> Result<(), String> {
    for Item { key, is_on } in items {
        let here = match key.as_str() {
            "api/ga" | "api/legacy" | "v1" | "api/v1" => true,
            "api/alpha" => false,
            // Some versions are, some are not.
            "api/all" | "api/beta" => {
                return Err(refusal(
                    key,
                    *is_on,
                    "windlass serves some of these versions; name the one that the test needs",
                ));
            }
            // A version, perhaps with a resource of it.
            other => {
                let mut parts = other.split('/');
                is_served(parts.next().unwrap_or_default(), parts.next().unwrap_or_default())
            }
        };
        if here != *is_on {
            return Err(refusal(key, *is_on, if here { "it is always served" } else { "it is not served" }));
        }
    }
    Ok(())
}

fn refusal(key: &str, is_on: bool, why: &str) -> String {
    format!("--runtime-config={key}={is_on} is not possible with windlass: {why}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_so_is_accepted() {
        let served = |group: &str, version: &str| (group, version) == ("batch", "v1");
        let check = |items: &[&str]| check(&read(items)?, served);
        assert_eq!(
            check(&["batch/v1=true", "batch/v1", "batch/v1/jobs=true", "api/ga=true", "api/alpha=false"]),
            Ok(())
        );
        assert_eq!(check(&["batch/v2alpha1=false"]), Ok(()));
        for refused in ["batch/v1=false", "batch/v2alpha1=true", "api/all=true", "api/beta=false", "api/alpha=true"] {
            assert!(
                check(&[refused]).unwrap_err().starts_with("--runtime-config=api/") || refused.starts_with("batch")
            );
        }
        assert_eq!(check(&["batch/v1=yes"]).unwrap_err(), "runtime-config invalid value batch/v1=yes");
    }
}
