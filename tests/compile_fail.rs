//! What types rule out, and what the compiler says then. After a change of either: `TRYBUILD=overwrite`.

#[test]
#[ignore = "builds the crate and its dependencies once more: minutes"]
fn what_types_rule_out_does_not_compile() {
    trybuild::TestCases::new().compile_fail("tests/compile_fail/*.rs");
}
