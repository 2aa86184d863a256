/** One trace as far as it is known: its head, its verdicts, its points, as they come. */

import type { Client, Findings, Head, Points, Verdict } from './wire'

export class Opened {
  head = $state.raw<Head | null>(null)
  verdicts = $state.raw<Record<string, Verdict>>({})
  findings = $state.raw<Findings | null>(null)
  progress = $state.raw<{ name: string; done: number; total: number } | null>(null)
  points = $state.raw<Points | null>(null)
  failed = $state.raw<Record<string, string>>({})
  finished = $state(false)
  error = $state('')
  private stop: () => void = () => undefined
  private asked = ''

  constructor(readonly client: Client, readonly id: string, readonly job: string) {}

  /** Listens until it is finished; nothing of an older trace reaches this one. */
  follow(): this {
    this.stop = this.client.listen(this.id, {
      head: (head) => (this.head = head),
      verdict: (one) => (this.verdicts = { ...this.verdicts, [one.name]: one }),
      findings: (one) => (this.findings = one),
      progress: (one) => (this.progress = one),
      failed: ({ name, reason }) => (this.failed = { ...this.failed, [name]: reason }),
      done: () => this.end(),
      cancelled: () => this.end(),
      error: ({ error }) => {
        this.error = error
        this.end()
      },
    })
    return this
  }

  private end(): void {
    this.finished = true
    this.progress = null
  }

  /** Its points along some axes; a late answer to an older wish is dropped. */
  async project(axes: string, space: string): Promise<void> {
    const wish = `${axes} ${space}`
    if (this.asked === wish) return
    this.asked = wish
    try {
      const points = await this.client.points(this.id, axes, space)
      if (this.asked === wish) this.points = points
    } catch (error) {
      this.asked = ''
      throw error
    }
  }

  async cancel(): Promise<void> {
    if (this.job) await this.client.cancel(this.job).catch(() => undefined)
    this.leave()
  }

  leave(): void {
    this.stop()
    this.end()
  }
}
