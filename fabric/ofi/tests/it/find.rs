//! What `Ofi::find` says of a provider or a NIC that is not there, with the system's libfabric.
//! (Writes are tested by `fabric`'s conformance suite.)
//!
//! Without libfabric the test is skipped.

use ofi::{Error, NicAddress, Ofi};

fn of(provider: &str) -> NicAddress {
    NicAddress {
        provider: provider.to_owned(),
        ..NicAddress::default()
    }
}

#[test]
fn what_is_not_there_is_named_with_what_is() {
    let ofi = match Ofi::load(None) {
        Ok(ofi) => ofi,
        Err(Error::NoLibrary { detail }) => return println!("skipped: no libfabric ({detail})"),
        Err(e) => panic!("{e}"),
    };
    let none = ofi.find(&of("nosuch")).expect_err("no such provider");
    assert!(matches!(none, Error::NoProvider { .. }), "{none}");
    println!("{none}");
    let place = NicAddress {
        domain: Some("nosuch0".to_owned()),
        ..of("tcp;ofi_rxm")
    };
    let none = ofi.find(&place).expect_err("no such domain").to_string();
    assert!(
        none.contains("domain nosuch0") && none.contains("lo"),
        "{none}"
    );
    println!("{none}");
    let place = NicAddress {
        address: Some("203.0.113.77".to_owned()),
        ..of("tcp;ofi_rxm")
    };
    let none = ofi
        .find(&place)
        .expect_err("an address of no machine")
        .to_string();
    assert!(none.contains("address 203.0.113.77"), "{none}");
    println!("{none}");
    match ofi.find(&of("efa")) {
        Ok(info) => println!("there is an EFA here: {info:?}"),
        Err(e) => println!("{e}"),
    }
}
