/* changing.c: between.c, midway.c and races.c in one program, for it takes far longer to compile what they have in common than to
 * run it. The first argument is the name of one, the others are its own. */
#define main midway_main
#include "midway.c" /* first: it asks the system's headers for more than C11 */
#undef main
#define main between_main
#include "between.c"
#undef main
#define main races_main
#include "races.c"
#undef main

int main(int argc, char **argv) {
    require(argc > 1, "the name of a driver");
    if (strcmp(argv[1], "between") == 0) return between_main(argc - 1, argv + 1);
    if (strcmp(argv[1], "midway") == 0) return midway_main(argc - 1, argv + 1);
    require(strcmp(argv[1], "races") == 0, "a known driver");
    return races_main(argc - 1, argv + 1);
}
