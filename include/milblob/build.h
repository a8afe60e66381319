/* build.h: how this was compiled, as text. */
#ifndef MILBLOB_BUILD_H
#define MILBLOB_BUILD_H

#define MB_TEXT_OF(x) #x
#define MB_TEXT(x) MB_TEXT_OF(x)

#if defined(__clang__)
#define MB_COMPILER "clang " __clang_version__
#elif defined(__GNUC__)
#define MB_COMPILER "gcc " __VERSION__
#elif defined(_MSC_VER)
#define MB_COMPILER "MSVC " MB_TEXT(_MSC_VER)
#else
#define MB_COMPILER "unknown"
#endif

/* The limited API of the Python that it was compiled for, as 0x030B0000; 0 for one version's own. */
#ifdef Py_LIMITED_API
#define MB_STABLE_ABI (Py_LIMITED_API + 0)
#else
#define MB_STABLE_ABI 0
#endif

#endif
