//! `clients`: names, tokens and certificates of the applications that may call.

use std::collections::HashSet;
use std::sync::Arc;

use super::check::Check;
use super::place::{At, Given, key};
use super::server::is_token;
use crate::config::model::{Clients, SubjectName};
use crate::config::problem::quoted;
use crate::config::schema;
use crate::config::schema::forms::Named;

/// The names that stand for callers without one.
const RESERVED: [&str; 2] = ["none", "other"];

/// Checks every client. `None` if the key is absent.
pub(super) fn clients(
    check: &mut Check<'_>,
    given: &Given<'_, Option<Named<schema::Client>>>,
    has_client_ca: bool,
) -> Option<Arc<Clients>> {
    given.get()?;
    if given.at.names().is_empty() {
        let message = "names no client, so nobody may call; leave the key out to let everyone call";
        check.problem(&given.at, message);
    }
    let mut clients = Clients::default();
    for (name, client) in given.entries() {
        one(check, name, &client, &mut clients);
        let certificate = key!(client.certificate);
        if certificate.at.is_given() && !has_client_ca {
            let message = "needs `server.tls.client_ca`, by which certificates are verified";
            check.problem_of_key(&certificate.at, message);
        }
    }
    Some(Arc::new(clients))
}

/// Warns of names that no client has, once, because there may be many.
pub(super) fn warn_of_strangers<'a>(
    check: &mut Check<'_>,
    clients: Option<&HashSet<&str>>,
    named: impl Iterator<Item = (&'a str, At<'a>)>,
) {
    let Some(clients) = clients else { return };
    let mut strangers = named.filter(|(name, _)| !clients.contains(name));
    let Some((first, at)) = strangers.next() else { return };
    let further = match strangers.count() {
        0 => String::new(),
        further => format!(", and {further} further values name none"),
    };
    check.warn(&at, format!("no client is named {}{further}", quoted(first)));
}

fn one(check: &mut Check<'_>, name: &str, client: &Given<'_, schema::Client>, clients: &mut Clients) {
    check.name(name, &client.at);
    if RESERVED.contains(&name) {
        let message =
            format!("{} stands for callers without a name in metrics; choose another name", quoted(name));
        check.problem_of_key(&client.at, message);
    }
    let name: Arc<str> = name.into();
    let (tokens, certificate) = (key!(client.tokens), key!(client.certificate));
    for token in tokens.items() {
        if !is_token(token.value) {
            let message = "must consist of visible ASCII characters, at least one, without spaces";
            check.problem(&token.at, message);
        } else if let Err(owner) = clients.add_token(&name, token.value) {
            check.problem(&token.at, format!("client {} has this token already", quoted(&owner)));
        }
    }
    if let Some(certificate) = certificate.get() {
        let san = key!(certificate.san);
        certificate_name(check, san.value, &name, clients, &san.at);
    }
    if tokens.at.length() == 0 && !certificate.at.is_given() {
        check.problem_of_key(&client.at, "needs `tokens` or `certificate`");
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
