//! Tests that run on more than one kind of device: functions, of which each test binary makes
//! tests.

/// Makes a test of each function `MODULE::CASE`; the attributes in brackets go to each test. A case
/// that is in no list is a function that nothing calls, which the compiler reports.
macro_rules! cases {
    ($attributes:tt $($module:ident: $($case:ident)*;)*) => {
        $($(cases!(@one $attributes $module $case);)*)*
    };
    (@one [$(#[$attribute:meta])*] $module:ident $case:ident) => {
        #[test]
        $(#[$attribute])*
        fn $case() {
            $module::$case();
        }
    };
}
