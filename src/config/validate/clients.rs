//! `clients`: who may call, and what they show.

use std::sync::Arc;

use super::Check;
use super::place::At;
use super::server::{is_name, is_token};
use crate::config::model::Clients;
use crate::config::problem::quoted;
use crate::config::schema;
use crate::config::schema::forms::Named;

/// Every client, or `None` where the key is absent.
pub(super) fn clients(
    check: &mut Check<'_>,
    given: Option<&Named<schema::Client>>,
    at: &At<'_>,
) -> Option<Arc<Clients>> {
    let given = given?;
    if at.names().is_empty() {
        check.problem(at, "names no client, so nobody may call; leave the key out to let everyone call");
    }
    let mut clients = Clients::default();
    for (name, client) in given.iter() {
        one(check, name, client, &mut clients, &at.key(name));
    }
    Some(Arc::new(clients))
}

fn one(check: &mut Check<'_>, name: &str, given: &schema::Client, clients: &mut Clients, at: &At<'_>) {
    is_name(check, name, at);
    let client: Arc<str> = name.into();
    let at_tokens = at.key("tokens");
    for (index, token) in given.tokens.iter().flatten().enumerate() {
        let at = at_tokens.index(index);
        if !is_token(token) {
            check.problem(&at, "must consist of visible ASCII characters, at least one, without spaces");
        } else if let Err(owner) = clients.add_token(&client, token) {
            check.problem(&at, format!("client {} has this token already", quoted(&owner)));
        }
    }
    check.unsupported(given.certificate.as_ref(), &at.key("certificate"));
    if given.certificate.as_ref().is_some_and(|certificate| certificate.san.is_empty()) {
        check.problem(&at.key("certificate").key("san"), "must not be empty");
    }
    if at_tokens.length() == 0 && !at.key("certificate").is_given() {
        check.problem_of_key(at, "needs `tokens` or `certificate`");
    }
}
