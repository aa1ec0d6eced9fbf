//! Impersonation: a user who may `impersonate` another sends a request as that one.

use axum::http::HeaderMap;
use windlass_kit::{percent, serve::headers};

use super::authorization::forbidden;
use crate::apiserver::request::attributes::Attributes;
use crate::apiserver::{
    Api,
    request::{
        error::ApiError,
        user::{ANONYMOUS, AUTHENTICATED_GROUP, UNAUTHENTICATED_GROUP, User},
    },
};

const USER: &str = "impersonate-user";
const UID: &str = "impersonate-uid";
const GROUP: &str = "impersonate-group";
const EXTRA_PREFIX: &str = "impersonate-extra-";

/// The requested user, as the headers have it; `None` without such headers. Pure.
///
/// # Errors
/// When one of them is no text, and when a uid, groups or extra are requested without a user.
fn requested(headers: &HeaderMap) -> Result<Option<User>, ApiError> {
    let all = |name: &str| -> Result<Vec<String>, ApiError> {
        Ok(headers::texts(headers, name)?.into_iter().map(str::to_owned).collect())
    };
    let text = |name: &str| Ok::<_, ApiError>(all(name)?.into_iter().next().unwrap_or_default());
    let mut user = User { name: text(USER)?, uid: text(UID)?, groups: all(GROUP)?, ..User::default() };
    for name in headers.keys() {
        if let Some(key) = name.as_str().strip_prefix(EXTRA_PREFIX) {
            let key = percent::decoded(key).unwrap_or_else(|| key.to_owned());
            user.extra.entry(key).or_default().extend(all(name.as_str())?);
        }
    }
    if user == User::default() {
        return Ok(None);
    }
    if user.name.is_empty() {
        return Err(ApiError::bad_request("requested uid, groups or extra without impersonating a user"));
    }
    Ok(Some(user))
}

/// What the caller must be allowed to impersonate: group, resource, subresource, namespace and name. Pure.
fn requirements(user: &User) -> Vec<Attributes<'_>> {
    const AUTHENTICATION: &str = "authentication.k8s.io";
    let one = |group: &'static str, resource: &'static str, name| Attributes {
        verb: "impersonate",
        is_resource: true,
        group,
        version: "v1",
        resource,
        name,
        ..Attributes::default()
    };
    let mut all = vec![match service_account(&user.name) {
        Some((namespace, name)) => Attributes { namespace, ..one("", "serviceaccounts", name) },
        None => one("", "users", &user.name),
    }];
    all.extend(user.groups.iter().map(|group| one("", "groups", group)));
    for (key, values) in &user.extra {
        let extra = |value| Attributes { subresource: key, ..one(AUTHENTICATION, "userextras", value) };
        all.extend(values.iter().map(|value| extra(value.as_str())));
    }
    if !user.uid.is_empty() {
        all.push(one(AUTHENTICATION, "uids", &user.uid));
    }
    all
}

/// Namespace and name of a service account's user.
fn service_account(user: &str) -> Option<(&str, &str)> {
    let (namespace, name) = user.strip_prefix("system:serviceaccount:")?.split_once(':')?;
    (!namespace.is_empty() && !name.is_empty() && !name.contains(':')).then_some((namespace, name))
}

/// The impersonated user with the groups that it has by itself. Pure.
fn completed(mut user: User) -> User {
    if user.groups.is_empty()
        && let Some((namespace, name)) = service_account(&user.name)
    {
        user.groups = User::service_account(namespace, name).groups;
    }
    let implied = if user.name == ANONYMOUS { UNAUTHENTICATED_GROUP } else { AUTHENTICATED_GROUP };
    if !user.is_in(AUTHENTICATED_GROUP) && !user.is_in(UNAUTHENTICATED_GROUP) {
        user.groups.push(implied.to_owned());
    }
    user
}

impl Api {
    /// The user that a request acts as, and takes the headers away.
    ///
    /// # Errors
    /// When the caller may not impersonate the requested user.
    pub(in crate::apiserver) fn impersonate(
        &self,
        caller: &User,
        headers: &mut HeaderMap,
    ) -> Result<Option<User>, ApiError> {
        let Some(user) = requested(headers)? else { return Ok(None) };
        for attributes in requirements(&user) {
            self.authorizer().authorize(caller, &attributes).map_err(|why| forbidden(caller, &attributes, &why))?;
        }
        let names: Vec<_> = headers.keys().filter(|name| name.as_str().starts_with("impersonate-")).cloned().collect();
        for name in names {
            headers.remove(name);
        }
        Ok(Some(completed(user)))
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
        }
        headers
    }

    #[test]
    fn nothing_that_is_requested_falls_away() {
        let named = |name: &'static str, value: &[u8]| {
            let mut all = headers(&[("impersonate-user", "jane")]);
            all.insert(name, HeaderValue::from_bytes(value).unwrap());
            requested(&all)
        };
        for name in [USER, UID, GROUP, "impersonate-extra-scopes", "impersonate-extra-other%zz"] {
            for byte in 0x80..=0xff_u8 {
                // A byte of Latin-1 alone is no UTF-8, and refused.
                let refused = named(name, &[b'j', byte, b'r']).unwrap_err();
                assert_eq!(refused.code, 400, "{name} {byte:x}: {refused}");
                // As UTF-8 it acts.
                let value = format!("j{}r", char::from(byte));
                let user = named(name, value.as_bytes()).unwrap().unwrap();
                let found = requirements(&user).iter().any(|needed| needed.name == value);
                assert!(found, "{name}: {value} in {user:?}");
            }
        }
    }

    #[test]
    fn each_part_of_a_user_needs_a_right() {
        let all = headers(&[
            ("impersonate-user", "jane"),
            ("impersonate-group", "dev"),
            ("impersonate-group", "ops"),
            ("impersonate-uid", "1"),
            ("impersonate-extra-scopes", "view"),
            ("impersonate-extra-acme.com%2fproject", "x"),
        ]);
        let user = requested(&all).unwrap().unwrap();
        assert_eq!(user.extra["acme.com/project"], ["x"]);
        let found: Vec<String> = requirements(&user)
            .iter()
            .map(|a| format!("{}/{}/{}/{}", a.group, a.resource, a.subresource, a.name))
            .collect();
        assert_eq!(
            found,
            [
                "/users//jane",
                "/groups//dev",
                "/groups//ops",
                "authentication.k8s.io/userextras/acme.com/project/x",
                "authentication.k8s.io/userextras/scopes/view",
                "authentication.k8s.io/uids//1",
            ]
        );
        assert_eq!(completed(user).groups, ["dev", "ops", "system:authenticated"]);
    }

    #[test]
    fn service_accounts_have_their_groups() {
        let user = requested(&headers(&[("impersonate-user", "system:serviceaccount:n:default")])).unwrap().unwrap();
        let needed = &requirements(&user)[0];
        assert_eq!((needed.resource, needed.namespace, needed.name), ("serviceaccounts", "n", "default"));
        assert_eq!(
            completed(user.clone()).groups,
            ["system:serviceaccounts", "system:serviceaccounts:n", "system:authenticated"]
        );
        let anonymous = User { name: ANONYMOUS.to_owned(), ..User::default() };
        assert_eq!(completed(anonymous).groups, ["system:unauthenticated"]);
    }

    #[test]
    fn parts_without_a_user_are_refused() {
        assert!(requested(&HeaderMap::new()).unwrap().is_none());
        assert!(requested(&headers(&[("impersonate-group", "system:masters")])).is_err());
    }
}
