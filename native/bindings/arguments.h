// Converts Python arguments to C++ parameters. A bad one is a single TypeError or ValueError that
// names the argument, what was given and what is allowed: def() binds a function in this way.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace vramkit {

// "NAME is GIVEN; it may be ALLOWED".
[[noreturn]] void refuse_type(nanobind::handle given, const char* name, const std::string& allowed);
[[noreturn]] void refuse_value(nanobind::handle given, const char* name,
                               const std::string& allowed);

// Any object with __index__ counts as an integer. `allowed`, if given, replaces the text made from
// the bounds.
int64_t signed_argument(nanobind::handle given, const char* name, int64_t least, int64_t most,
                        const char* allowed = nullptr);
uint64_t unsigned_argument(nanobind::handle given, const char* name, uint64_t least, uint64_t most,
                           const char* allowed = nullptr);
double number_argument(nanobind::handle given, const char* name);
bool bool_argument(nanobind::handle given, const char* name);
std::string text_argument(nanobind::handle given, const char* name);
nanobind::callable callable_argument(nanobind::handle given, const char* name);
nanobind::bytes bytes_argument(nanobind::handle given, const char* name);
[[noreturn]] void refuse_instance(nanobind::handle given, const char* name, nanobind::handle type);

// Raises TypeError unless it is an instance of a class that is bound here.
template <typename T>
void require_instance(nanobind::handle given, const char* name) {
    if (!nanobind::isinstance<T>(given) || !nanobind::inst_ready(given)) {
        refuse_instance(given, name, nanobind::type<T>());
    }
}

// The value of one argument; the general case is a class that is bound here.
template <typename T>
struct Argument {
    static T& from(nanobind::handle given, const char* name) {
        require_instance<T>(given, name);
        return *nanobind::inst_ptr<T>(given);
    }
};

template <std::integral T>
struct Argument<T> {
    static T from(nanobind::handle given, const char* name) {
        using Limits = std::numeric_limits<T>;
        if constexpr (std::is_same_v<T, bool>) {
            return bool_argument(given, name);
        } else if constexpr (std::is_signed_v<T>) {
            return static_cast<T>(signed_argument(given, name, Limits::min(), Limits::max()));
        } else {
            return static_cast<T>(unsigned_argument(given, name, 0, Limits::max()));
        }
    }
};

template <>
struct Argument<double> {
    static double from(nanobind::handle given, const char* name) {
        return number_argument(given, name);
    }
};

template <>
struct Argument<std::string> {
    static std::string from(nanobind::handle given, const char* name) {
        return text_argument(given, name);
    }
};

template <>
struct Argument<nanobind::callable> {
    static nanobind::callable from(nanobind::handle given, const char* name) {
        return callable_argument(given, name);
    }
};

template <>
struct Argument<nanobind::bytes> {
    static nanobind::bytes from(nanobind::handle given, const char* name) {
        return bytes_argument(given, name);
    }
};

// The function itself says what is wrong with it.
template <>
struct Argument<nanobind::handle> {
    static nanobind::handle from(nanobind::handle given, const char*) { return given; }
};
template <>
struct Argument<nanobind::object> {
    static nanobind::object from(nanobind::handle given, const char*) {
        return nanobind::borrow(given);
    }
};

template <typename T>
struct Argument<std::shared_ptr<T>> {
    static std::shared_ptr<T> from(nanobind::handle given, const char* name) {
        require_instance<T>(given, name);
        return nanobind::cast<std::shared_ptr<T>>(given);
    }
};

template <typename T>
struct Argument<std::optional<T>> {
    static std::optional<T> from(nanobind::handle given, const char* name) {
        if (given.is_none()) return std::nullopt;
        return Argument<T>::from(given, name);
    }
};

template <typename T>
struct Argument<std::vector<T>> {
    static std::vector<T> from(nanobind::handle given, const char* name) {
        if (!nanobind::isinstance<nanobind::list>(given)) refuse_type(given, name, "a list");
        std::vector<T> all;
        for (nanobind::handle each : given) all.push_back(Argument<T>::from(each, name));
        return all;
    }
};

namespace detail {

// A parameter as nanobind sees it: any object fits, while the signature, and so the generated stub,
// says T.
template <typename T>
struct Given {
    nanobind::handle object;
};

template <typename T>
struct Signature;
template <typename R, typename... A>
struct Signature<R (*)(A...)> {
    using Result = R;
    using Parameters = std::tuple<A...>;
};
template <typename R, typename C, typename... A>
struct Signature<R (C::*)(A...)> : Signature<R (*)(C&, A...)> {};
template <typename R, typename C, typename... A>
struct Signature<R (C::*)(A...) const> : Signature<R (*)(const C&, A...)> {};

// `self` stays what it is: Python has looked the method up on it.
template <bool Named, typename T>
using Parameter = std::conditional_t<Named, Given<T>, T>;

template <bool Named, typename T>
decltype(auto) value_of(Parameter<Named, T>& given, [[maybe_unused]] const char* name) {
    if constexpr (Named) {
        return Argument<std::remove_cvref_t<T>>::from(given.object, name);
    } else {
        return static_cast<T&&>(given);
    }
}

template <typename Function, std::size_t Names, std::size_t... I>
auto checked(Function function, const std::array<const char*, Names>& names,
             std::index_sequence<I...>) {
    using Parts = Signature<Function>;
    using Parameters = typename Parts::Parameters;
    constexpr std::size_t unnamed = std::tuple_size_v<Parameters> - Names;
    static_assert(unnamed <= 1, "every parameter but self needs an nb::arg");
    std::array<const char*, Names + unnamed> all{};
    for (std::size_t each = 0; each < Names; ++each) all[unnamed + each] = names[each];
    return
        [function, all](Parameter<(I >= unnamed), std::tuple_element_t<I, Parameters>>... given) ->
        typename Parts::Result {
            return std::invoke(
                function,
                value_of<(I >= unnamed), std::tuple_element_t<I, Parameters>>(given, all[I])...);
        };
}

template <typename Extra>
inline constexpr bool is_argument = nanobind::detail::arg_traits<Extra>::is_arg;

template <typename... Extra>
auto names_of(const Extra&... extra) {
    std::array<const char*, (std::size_t{is_argument<Extra>} + ... + 0)> names{};
    std::size_t count = 0;
    const auto note = [&](const auto& each) {
        if constexpr (is_argument<std::remove_cvref_t<decltype(each)>>) {
            names[count++] = each.name_;
        }
    };
    (note(extra), ...);
    return names;
}

// nanobind itself refuses None, with a message of its own, unless the argument accepts None.
template <typename Extra>
decltype(auto) with_none(const Extra& extra) {
    namespace nb = nanobind;
    using Traits = nb::detail::arg_traits<Extra>;
    constexpr uint32_t flags = Traits::flags | nb::detail::cast_flags::accepts_none;
    if constexpr (!Traits::is_arg) {
        return (extra);
    } else if constexpr (Traits::has_default) {
        return nb::arg_v_t<flags, Traits::locked>(extra, nb::object(extra.value));
    } else {
        return nb::arg_t<flags, Traits::locked>(extra);
    }
}

}  // namespace detail

// scope.def(name, function, extra...), with Python arguments converted as above. Public functions
// have an nb::sig: their arguments accept None here, so that the conversion reports the error, and
// the signature that nanobind generates would allow None.
template <typename Scope, typename Function, typename... Extra>
void def(Scope& scope, const char* name, Function function, const Extra&... extra) {
    constexpr bool is_public = (std::is_same_v<Extra, nanobind::sig> || ...);
    constexpr std::size_t count =
        std::tuple_size_v<typename detail::Signature<Function>::Parameters>;
    auto checked =
        detail::checked(function, detail::names_of(extra...), std::make_index_sequence<count>());
    if constexpr (is_public) {
        scope.def(name, std::move(checked), detail::with_none(extra)...);
    } else {
        scope.def(name, std::move(checked), extra...);
    }
}

}  // namespace vramkit

template <typename T>
struct nanobind::detail::type_caster<vramkit::detail::Given<T>> {
    NB_TYPE_CASTER(vramkit::detail::Given<T>, make_caster<T>::Name)

    bool from_python(handle source, uint32_t, cleanup_list*) noexcept {
        value.object = source;
        return true;
    }
};
