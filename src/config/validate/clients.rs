//! `clients`: who may call, and what they show.

use std::sync::Arc;

use super::Check;
use super::place::At;
use super::server::{is_name, is_token};
use crate::config::model::{Clients, SubjectName};
use crate::config::problem::quoted;
use crate::config::schema;
use crate::config::schema::forms::Named;

/// Every client, or `None` where the key is absent.
pub(super) fn clients(
    check: &mut Check<'_>,
    given: Option<&Named<schema::Client>>,
    has_client_ca: bool,
    at: &At<'_>,
) -> Option<Arc<Clients>> {
    let given = given?;
    if at.names().is_empty() {
        check.problem(at, "names no client, so nobody may call; leave the key out to let everyone call");
    }
    let mut clients = Clients::default();
    for (name, client) in given.iter() {
        one(check, name, client, &mut clients, &at.key(name));
        let at_certificate = at.key(name).key("certificate");
        if at_certificate.is_given() && !has_client_ca {
            let message = "needs `server.tls.client_ca`, by which certificates are verified";
            check.problem_of_key(&at_certificate, message);
        }
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
    if let Some(certificate) = &given.certificate {
        certificate_name(check, &certificate.san, &client, clients, &at.key("certificate").key("san"));
    }
    if at_tokens.length() == 0 && !at.key("certificate").is_given() {
        check.problem_of_key(at, "needs `tokens` or `certificate`");
    }
}

fn certificate_name(check: &mut Check<'_>, san: &str, client: &Arc<str>, clients: &mut Clients, at: &At<'_>) {
    let Some(name) = SubjectName::parse(san) else {
        let message =
            "expected a subject alternative name, such as reports.internal or spiffe://example.org/reports";
        check.problem(at, message);
        return;
    };
    if let Err(owner) = clients.add_certificate(client, name) {
        check.problem(at, format!("client {} has this name already", quoted(&owner)));
    }
}
