//! The trunks of SIP's proxy, as the user writes them.

use server::sip::Trunk;

use super::diagnostics::{Diagnostic, Report};
use super::network::Network;
use super::node::{Node, Raw};
use super::schema::Settings;
use super::setting::{Bounded, List, Setting, wrong_type};
use super::walk::unknown_key;

/// One trunk, each value with its place.
#[derive(Clone, Debug, Default)]
pub(crate) struct Written {
    addresses: List<Network>,
    weight: Option<Weight>,
}

/// The share of the capacity in an overload.
type Weight = Bounded<1, 1000>;

const FIELDS: [&str; 2] = ["addresses", "weight"];

const EXAMPLE: &str = "write it like { addresses = [\"192.0.2.7\"] }";

impl Setting for Written {
    fn read(node: &Node<'_>, report: &mut Report) -> Option<Self> {
        let Raw::Toml(toml::de::DeValue::Table(table)) = &node.raw else {
            let help = format!("{EXAMPLE}, in a configuration file");
            report.push(wrong_type(node, "a trunk").help(&help));
            return None;
        };
        let source = node.at.source;
        let errors = report.errors();
        let mut trunk = Written::default();
        for (name, value) in table.iter() {
            let value = Node::toml(source, value);
            match &name.get_ref()[..] {
                "addresses" => trunk.addresses = List::read(&value, report).unwrap_or_default(),
                "weight" => trunk.weight = Weight::read(&value, report),
                _ => report.push(unknown_key(source, name, "a trunk", &FIELDS, &[])),
            }
        }
        if trunk.addresses.is_empty() && report.errors() == errors {
            report.push(Diagnostic::error(&node.at, "the trunk has no address").help(EXAMPLE));
        }
        (report.errors() == errors).then_some(trunk)
    }

    fn write(&self, reveal: bool) -> String {
        let addresses = self.addresses.write(reveal);
        match &self.weight {
            Some(weight) => format!(
                "{{ addresses = {addresses}, weight = {} }}",
                weight.write(reveal)
            ),
            None => format!("{{ addresses = {addresses} }}"),
        }
    }
}

/// The plain values.
pub(super) fn resolve(settings: &Settings) -> Option<Vec<Trunk>> {
    let trunks = super::values(settings.sip_trunk.clone()?.value).into_iter();
    let of = |trunk: Written| {
        let networks = super::values(trunk.addresses).into_iter();
        Trunk {
            addresses: networks.map(|network| network.0).collect(),
            weight: trunk.weight.map_or(1, |weight| weight.0 as u16),
        }
    };
    Some(trunks.map(of).collect())
}

/// Reports trunks without a domain whose users they could reach.
pub(super) fn check(settings: &Settings, report: &mut Report) {
    let Some(first) = settings.sip_trunk.as_ref().and_then(|it| it.value.first()) else {
        return;
    };
    let domains = settings.sip_domain.as_ref();
    if domains.is_none_or(|domains| domains.value.is_empty()) {
        report.push(
            Diagnostic::warning(&first.at, "the trunk reaches nobody: there is no domain")
                .help("add a [[sip.domain]]"),
        );
    }
}
