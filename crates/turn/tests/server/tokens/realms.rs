//! Keys of a realm: their tokens are good in that realm only.

use std::sync::{Arc, Mutex};

use hairpin_turn::server::credentials::StaticCredentials;
use hairpin_turn::server::{ClientIdentity, ConfigError, Quota, QuotaExceeded, RealmConfig};
use stun::ThirdPartyAuthorization;

use super::{KID, NAME, OpenTokens, PEER, TokenClient};
use crate::world::{REALM, World};

/// The realms of the clients that have taken something.
#[derive(Debug, Default)]
struct Realms(Mutex<Vec<String>>);

impl Quota for Realms {
    fn try_acquire(&self, client: &ClientIdentity<'_>) -> Result<(), QuotaExceeded> {
        self.0.lock().unwrap().push(client.realm.to_owned());
        Ok(())
    }

    fn release(&self, client: &ClientIdentity<'_>) {
        let mut all = self.0.lock().unwrap();
        let place = all.iter().position(|realm| realm == client.realm);
        all.swap_remove(place.expect("released what was acquired"));
    }

    fn transfer(
        &self,
        from: &ClientIdentity<'_>,
        to: &ClientIdentity<'_>,
    ) -> Result<(), QuotaExceeded> {
        self.release(from);
        self.try_acquire(to)
    }
}

#[test]
fn a_key_chooses_the_realm_of_the_holders_of_its_tokens() {
    const SHOP: &str = "shop.example";
    let quota = Arc::new(Realms::default());
    let mut world = World::with(|config| {
        let users = || Arc::new(StaticCredentials::new(SHOP));
        let mut shop = RealmConfig::new(SHOP, users());
        shop.origins = vec!["https://shop.example".to_owned()];
        config.realms = vec![shop, RealmConfig::new("bank.example", users())];
        config.quota = Arc::clone(&quota) as _;
        let kids = [(KID, None), ("other", Some(SHOP)), ("gone", Some("gone"))];
        config.access_tokens = Some(OpenTokens::with(NAME, &kids));
    });
    let held = || quota.0.lock().unwrap().clone();
    let mut shopper = TokenClient::new(&mut world, "other", 1);
    assert_eq!(shopper.allocate(&mut world).code(), 0);
    world.expect_opened();
    assert_eq!(held(), [SHOP]);
    // With the challenge of the default realm, and with that of the realm.
    for realm in [REALM, SHOP] {
        shopper.client.signing.realm = Some(realm.to_owned());
        assert_eq!(shopper.client.permit(&mut world, &[PEER]), 0, "{realm}");
        assert_eq!(shopper.refresh(&mut world, 900).granted(), 900, "{realm}");
    }
    shopper.client.signing.realm = Some("bank.example".to_owned());
    assert_eq!(shopper.client.permit(&mut world, &[PEER]), 401);
    // A token of another realm does not refresh the allocation.
    let mut other = TokenClient::new(&mut world, KID, 2);
    other.client.next_id = shopper.client.next_id + 1000;
    assert_eq!(other.refresh(&mut world, 900).code(), 441);
    let mut default = TokenClient::at(&mut world, KID, 3, "198.51.100.7:7");
    assert_eq!(default.allocate(&mut world).code(), 0);
    world.expect_opened();
    assert_eq!(held(), [SHOP, REALM]);
    // Its realm is not there.
    let mut gone = TokenClient::at(&mut world, "gone", 4, "198.51.100.7:8");
    assert_eq!(gone.allocate(&mut world).code(), 401);
    // In the shop's realm, only its tokens count.
    for (kid, port, code) in [("other", 9, 0), (KID, 10, 401)] {
        let mut client = TokenClient::at(&mut world, kid, 5, &format!("198.51.100.7:{port}"));
        client.client.signing.realm = Some(SHOP.to_owned());
        let block = client.block.clone();
        let reply = client.client.try_allocate(&mut world, |request| {
            let origin = stun::Origin("https://shop.example");
            request.push(&origin).unwrap();
            TokenClient::push(&block, request);
        });
        assert_eq!(reply.code(), code, "{kid}");
        let name = reply.get::<ThirdPartyAuthorization<'_>>();
        assert_eq!(name.is_some(), code == 401);
    }
    world.expect_opened();
    assert_eq!(held(), [SHOP, REALM, SHOP]);
    world.events.clear();
    world.finish();
}

#[test]
fn the_server_name_fits_beside_the_longest_realm_with_keys() {
    let longest = hairpin_turn::server::max_server_name_bytes(REALM.len());
    let name: &'static str = "n".repeat(longest).leak();
    let long: &'static str = "r".repeat(40).leak();
    let world = World::with(|config| {
        let users = Arc::new(StaticCredentials::new(long));
        config.realms = vec![RealmConfig::new(long, users)];
        config.access_tokens = Some(OpenTokens::new(name));
    });
    let mut config = world.config.clone();
    config.access_tokens = Some(OpenTokens::with(name, &[(KID, Some(long))]));
    let room = hairpin_turn::server::max_server_name_bytes(long.len());
    assert_eq!(
        config.validate().unwrap_err(),
        ConfigError::ServerName(room)
    );
}
