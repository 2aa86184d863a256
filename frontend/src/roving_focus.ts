/** An action that makes all buttons of an element one tab stop. Left, right, Home and End move between them. */
export function rovingFocus(element: HTMLElement): { destroy(): void } {
  const buttons = () => [...element.querySelectorAll<HTMLButtonElement>('button:not(:disabled)')]
  let stop: Element | null = null
  function setStop(button: Element | null): void {
    stop = button
    for (const other of buttons()) other.tabIndex = other === button ? 0 : -1
  }
  const keepStop = () => setStop(stop && element.contains(stop) ? stop : (buttons()[0] ?? null))
  function move(event: KeyboardEvent): void {
    const list = buttons().filter((button) => button.offsetParent !== null) // without those that a small screen hides
    const position = list.indexOf(document.activeElement as HTMLButtonElement)
    const targets: Record<string, number> = { ArrowRight: position + 1, ArrowLeft: position - 1, Home: 0, End: list.length - 1 }
    const target = targets[event.key]
    if (target === undefined || position < 0) return
    event.preventDefault()
    event.stopPropagation()
    list[Math.max(0, Math.min(list.length - 1, target))]!.focus()
  }
  const follow = (event: FocusEvent) => {
    const button = (event.target as Element).closest('button')
    if (button && button !== stop) setStop(button)
  }
  const observer = new MutationObserver(keepStop)
  observer.observe(element, { childList: true, subtree: true })
  element.addEventListener('keydown', move)
  element.addEventListener('focusin', follow)
  keepStop()
  return { destroy: () => observer.disconnect() }
}
