//! Test cases for more than one kind of device: functions of which each test binary makes tests.

/// Makes a test of each function `MODULE::CASE`, with the attributes in brackets. The compiler
/// reports a case in no list as unused.
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
