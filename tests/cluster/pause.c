/* The process that holds a pod together: waits for a signal, and buries whoever dies. */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static void end(int number)
{
	(void)number;
	_exit(0);
}

static void bury(int number)
{
	(void)number;
	while (waitpid(-1, 0, WNOHANG) > 0)
		;
}

int main(void)
{
	signal(SIGINT, end);
	signal(SIGTERM, end);
	signal(SIGCHLD, bury);
	for (;;)
		pause();
}
